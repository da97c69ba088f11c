"""Client library: programs read events and receive webhooks with it.

It needs no configuration file, and imports nothing else of the program. Webhooks: start with ``receiver.py``.
"""

from poller.client.http_events import ContentRefused, ReceivedEvent
from poller.client.receiver import Receiver, verify
from poller.client.repeats import MemoryStore, RedisStore, SeenStore
from poller.client.signatures import MalformedSecret, VerificationError, WebhookRefused

__all__ = [
    "ContentRefused",
    "MalformedSecret",
    "MemoryStore",
    "ReceivedEvent",
    "Receiver",
    "RedisStore",
    "SeenStore",
    "VerificationError",
    "WebhookRefused",
    "verify",
]
