"""Client library: programs read events and receive webhooks with it.

It needs no configuration file, and imports nothing else of the program. Start with ``consumer.py`` for streams, with
``receiver.py`` for webhooks.
"""

from poller.client.consumer import Consumer as Consumer
from poller.client.gaps import Gap as Gap
from poller.client.group_store import LeaseLost as LeaseLost
from poller.client.http_events import ContentRefused as ContentRefused
from poller.client.http_events import ReceivedEvent as ReceivedEvent
from poller.client.receiver import Receiver as Receiver
from poller.client.receiver import verify as verify
from poller.client.record_pages import BootstrapRefused as BootstrapRefused
from poller.client.repeats import MemoryStore as MemoryStore
from poller.client.repeats import RedisStore as RedisStore
from poller.client.repeats import SeenStore as SeenStore
from poller.client.signatures import MalformedSecret as MalformedSecret
from poller.client.signatures import VerificationError as VerificationError
from poller.client.signatures import WebhookRefused as WebhookRefused
