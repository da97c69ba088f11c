"""The Lua scripts: the only way in which a feed's keys are written.

Their text is in ``lua/*.lua``; each file begins with what it does, its KEYS, its ARGV and what it answers.

**Invariants**

- Checks come first, then writes that do not fail: Redis does not roll a script back.
- Scripts move and compare bytes, no more. Events are encoded and snapshots packed before: Lua would damage large
  integers and empty arrays.
- Fencing compares a random nonce, not a counter: a counter kept in the same Redis, replicated asynchronously, may
  repeat after a failover.
- A script is sent again only while the lease that it checks may last: after that another process may have it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.resources import files
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from poller.errors import StoreUnavailable
from poller.redis.errors import translated

# Servers from 7.0 on know the shebang. With it, one that is out of memory refuses the script before its first write.
SHEBANG: Final = "#!lua\n"

LONGEST_LEASE_MS: Final = 600_000
"""No configuration allows a longer lease. One that lasts longer was taken before the server's clock was set back."""

_HEAD: Final = re.compile(r"(?:--.*\n)*")
_INCLUDED: Final = re.compile(r"^-- include (\w+)$", re.MULTILINE)


def lua(name: str) -> str:
    """The script ``lua/NAME.lua`` without its head, after the parts that it includes."""
    text = files("poller.store").joinpath("lua", f"{name}.lua").read_text("utf-8")
    head = cast("re.Match[str]", _HEAD.match(text))[0]
    parts = [lua(part) for part in _INCLUDED.findall(head)]
    return "\n".join([*parts, text[len(head) :].replace("LONGEST_LEASE_MS", str(LONGEST_LEASE_MS))])


ORDER: Final = lua("request_order")

DROP: Final = lua("drop_quarantined")

COMMIT: Final = lua("commit")


def in_any_case(shebang: str) -> str:
    """The first line of a script that a server runs although it is out of memory.

    For scripts that keep a lease or lead to freeing memory: without them no memory would ever be freed. A commit and
    the beginning of a round do not count among them.

    Args:
        shebang: the first line of the others; empty where the server does not know it.
    """
    return shebang and f"{shebang.rstrip()} flags=allow-oom\n"


@contextmanager
def answered(client: Redis) -> Iterator[None]:
    """A context around scripts: :func:`translated`, and a script forgotten after loading is unavailability."""
    try:
        with translated(client):
            yield
    except NoScriptError:
        raise StoreUnavailable("the server forgot a script between loading and running it") from None


_FIRST_PAUSE: Final = 0.05  # seconds between tries; doubles up to
_LONGEST_PAUSE: Final = 1.0


async def until_answered(
    client: Redis,
    send: Callable[[], Awaitable[Any]],
    *,
    lease: timedelta,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Any:
    """The answer of a script that is sent until it is answered.

    Args:
        client: of the store.
        send: sends the script once.
        lease: how long it is worth sending.
        sleep: waits for this number of seconds.

    Raises:
        StoreUnavailable: no answer in this time; the script may or may not have run.
        StoreRefused: the server will say the same again.
    """
    clock = asyncio.get_running_loop().time
    deadline, pause = clock() + lease.total_seconds(), _FIRST_PAUSE
    while True:
        try:
            with answered(client):
                return await send()
        except StoreUnavailable:
            if clock() + pause >= deadline:
                raise
        await sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
