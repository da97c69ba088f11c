"""Who has a lease: the process's name in front of the nonce that proves it.

The name is for people and for the other processes, and anybody may know it. The nonce is random, and nobody may: it
never leaves the process but for the store.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from contextlib import suppress
from typing import Final, cast

from redis.asyncio import Redis

from poller.errors import StoreError
from poller.store.connection import translated

_SHOWN: Final = 24  # characters of a machine's name


def member_name() -> str:
    """A name for this process that no other one has: machine, process id, and something random."""
    machine = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower())
    return f"{machine.strip('-')[:_SHOWN] or 'poller'}-{os.getpid()}-{secrets.token_hex(2)}"


def nonce_of(member: str) -> str:
    """What this process writes into a lease; fresh each time."""
    return f"{member}/{secrets.token_hex(16)}"


def owner_of(lease: bytes | None) -> str | None:
    """The process that has a lease; None where it is free, or held in a form that is not ours."""
    name, slash, _ = (lease or b"").decode("utf-8", "replace").partition("/")
    return name if slash and name else None


async def in_whose_hands(client: Redis, lease: str) -> str:
    """Who has a lease now, as the end of a message; empty where nobody has it or the store does not say."""
    with suppress(StoreError), translated(client):
        owner = owner_of(cast("bytes | None", await client.get(lease)))
        return f"; {owner} has it" if owner else ""
    return ""
