"""Webhooks: what is sent to a sink, how, and what follows from its answer."""
