"""Kinds of sinks.

Start at :mod:`poller.delivery.sinks.base`, the interface. Each other module is a kind, loaded by the scheme of a sink's
URL (``SINKS`` of :mod:`poller.config.subscriptions`), but ``connection``: what those that connect to a host share.
"""
