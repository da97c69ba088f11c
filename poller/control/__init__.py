"""Use cases: what an operator may ask of the program, once, for the command line and HTTP alike.

Start at :mod:`poller.control.status` for reading and at :mod:`poller.control.commands` for changing something.
"""
