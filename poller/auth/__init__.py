"""Credentials for requests to sources and sinks: tokens from files, commands and OAuth 2.0.

Start at :mod:`poller.auth.base`, the interface. ``sink_credential`` is what a request has brought, ``http_token`` has
the tokens of the HTTP service; each other module is one way to get a token, named by ``AUTH_KINDS`` of
:mod:`poller.config.http`.
"""
