"""From a stream's entry to a sink: reading, queues by record, attempts, retries, dead letters.

Start at :mod:`poller.delivery.dispatcher`; :mod:`poller.delivery.feed_consumer` is one subscription reading one feed.
"""
