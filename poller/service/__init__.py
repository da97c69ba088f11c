"""The daemon: objects joined, rounds scheduled, logs written, stopped cleanly."""
