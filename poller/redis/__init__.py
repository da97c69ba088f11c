"""A Redis client that knows nothing of feeds: URLs, topologies, the embedded server, errors, health.

Start at :mod:`poller.redis.client`; :mod:`poller.redis.errors` is the one place that translates redis-py's errors.
"""
