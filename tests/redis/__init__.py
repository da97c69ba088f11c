"""Tests of poller.redis."""
