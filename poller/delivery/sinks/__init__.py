"""Kinds of sinks.

Start at :mod:`poller.delivery.sinks.base`, the interface. ``webhook`` and ``nats`` are kinds, loaded by the scheme of a
sink's URL (``SINKS`` of :mod:`poller.config.subscriptions`); ``connection`` is what they share.
"""
