"""Client library: programs read events and receive webhooks with it.

It needs no configuration file, and imports nothing else of the program. Start with ``consumer.py``.
"""

from poller.client.consumer import Consumer as Consumer
from poller.client.feed_reader import Gap as Gap
from poller.client.group_store import LeaseLost as LeaseLost
from poller.client.record_pages import BootstrapRefused as BootstrapRefused
