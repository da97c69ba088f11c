"""What is kept in Redis: the keys, the scripts that change them, one lease, one writer.

Start at :mod:`poller.store.keys`, the table of keys, and :mod:`poller.store.feed`, which commits.
"""
