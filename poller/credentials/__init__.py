"""Bearer tokens: where each kind comes from, and how it is renewed. Sources and sinks are asked for them alike."""
