"""Credentials for requests to sources and sinks: tokens from files, commands and OAuth 2.0.

Start at :mod:`poller.auth.base`, the interface; each other module is one way to get a token.
"""
