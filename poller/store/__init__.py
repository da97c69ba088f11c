"""The store in Redis: its keys, the scripts that change them, leases and commits.

Start at :mod:`poller.store.keys`, the table of keys, and :mod:`poller.store.feed`, which commits.
"""
