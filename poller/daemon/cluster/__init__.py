"""Processes that share the work: who is there, which leases each should have, moving them.

Start at :mod:`poller.daemon.cluster.assignment`.
"""
