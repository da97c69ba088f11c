"""Use cases: what an operator may ask, once for the command line and HTTP.

Start at :mod:`poller.control.status` for reading and at :mod:`poller.control.commands` for changing something.
"""
