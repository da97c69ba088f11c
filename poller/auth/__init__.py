"""Credentials for requests to sources and sinks, and the tokens of the HTTP service.

Start at :mod:`poller.auth.base`, the interface. ``sink_credential`` is what a request has brought; each other module
is one way to get a token, named by ``AUTH_KINDS`` of :mod:`poller.config.http`.
"""
