"""Reading a source: one round drains the pages of a feed and commits each.

Start at :mod:`poller.source.round`.
"""
