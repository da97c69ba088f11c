"""Sharing the work between processes: the live processes, the assignment of leases, and moving them.

Start at :mod:`poller.daemon.cluster.assignment`.
"""
