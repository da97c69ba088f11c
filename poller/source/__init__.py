"""Polling: one round reads the pages of a feed and commits each.

Start at :mod:`poller.source.round`.
"""
