"""The HTTP service: probes, metrics, status, commands, subscriptions, event streams, the status page.

Start at :mod:`poller.web.app`.
"""
