"""HTTP that is not about feeds: address checks, outgoing transport, listening sockets.

Start at :mod:`poller.http.transport` for requests and :mod:`poller.http.server` for the listener.
"""
