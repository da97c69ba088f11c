"""Kinds of sinks: where events go.

Start at :mod:`poller.delivery.sinks.base`, the interface; each other module is one kind.
"""
