"""The parts of the running daemon: schedule, roles, runners, health; wired together in :mod:`poller.app`.

Start at :mod:`poller.daemon.poll_role` for reading sources and :mod:`poller.daemon.deliver_role` for deliveries.
"""
