"""Tests of poller.control."""
