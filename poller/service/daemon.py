"""The daemon: its share of the feeds polled, its share of the subscriptions delivered, until told to stop.

It starts whatever is away at that moment: a store that does not answer is waited for, a source that does not answer
makes rounds fail and nothing else. Told to stop, it starts no more rounds, lets each running commit finish, gives its
leases back so that another process can go on at once, and returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Final, TypeVar

import structlog
from redis.asyncio import Redis

from poller import __version__
from poller.config.settings import Settings
from poller.http.listening import listening
from poller.service.delivering import Deliverer
from poller.service.feed_rounds import poll_until
from poller.service.membership import Membership
from poller.service.opening import examined, opened_store, until_ready
from poller.service.polling import polled_feeds
from poller.service.web import application
from poller.stopping import ended
from poller.store.keys import MemberKeys, SubscriptionKeys
from poller.store.members import Members
from poller.store.owners import member_name
from poller.store.subscriptions import Registry

_log = structlog.get_logger("poller.daemon")
ROLES: Final = frozenset({"poll", "deliver", "serve"})
T = TypeVar("T")


async def run(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    stop: asyncio.Event,
    now: Callable[[], datetime],
    roles: frozenset[str] = ROLES,
) -> None:
    """Poll and deliver until ``stop`` is set.

    Args:
        settings: the configuration.
        environ: where tokens may be.
        stop: ends it, in order.
        now: the wall clock, UTC.
        roles: which of them to do.

    Raises:
        ConfigurationError: something is set up wrongly, or the store is less durable than is required.
        StoreError: the store does not want us, or the embedded one does not start.
    """
    async with AsyncExitStack() as stack:
        # What may take long at the start is given up when told to stop.
        store = await _unless_stopped(stack.enter_async_context(opened_store(settings)), stop)
        shebang = await _unless_stopped(until_ready(store, patience=None), stop) if store else None
        if store is None or shebang is None:
            return
        await examined(settings, store)
        membership = _membership(settings, store.client, shebang)
        only = None if "poll" in roles else frozenset[str]()
        feeds = await stack.enter_async_context(
            polled_feeds(settings, environ, store.client, shebang=shebang, now=now, only=only, member=membership.name)
        )
        ids = [polled.feed.id for polled in feeds]
        _log.info("started", version=__version__, store=store.shown, feeds=ids, member=membership.name)
        await stack.enter_async_context(membership.running())
        working: list[Coroutine[None, None, None]] = []
        if "poll" in roles:
            working.append(poll_until(stop, feeds, membership, store.client, ttl=settings.lease.ttl, now=now))
        if "deliver" in roles:
            working.append(Deliverer(settings, environ, store, membership, shebang=shebang, now=now).run(stop))
        if "serve" in roles and settings.http.public_url and settings.http.bind:
            registry = Registry(store.client, SubscriptionKeys.of(settings.redis.prefix))
            url = await stack.enter_async_context(listening(application(registry), *settings.http.bind))
            _log.info("listening", url=url)
            working.append(_waited(stop))
        await _all_of(working)
    _log.info("stopped")


def _membership(settings: Settings, client: Redis, shebang: str) -> Membership:
    ttl = settings.lease.ttl
    members = Members(client, MemberKeys.of(settings.redis.prefix), name=member_name(), ttl=ttl, shebang=shebang)
    return Membership(members, ttl=ttl, clock=asyncio.get_running_loop().time)


async def _all_of(working: Iterable[Coroutine[None, None, None]]) -> None:
    """Run them side by side until all have ended; the first failure of one ends the others and is raised."""
    tasks = [asyncio.create_task(one) for one in working]
    try:
        await asyncio.gather(*tasks)
    finally:
        await ended(*tasks)


async def _waited(stop: asyncio.Event) -> None:
    await stop.wait()


async def _unless_stopped(work: Coroutine[None, None, T], stop: asyncio.Event) -> T | None:
    """The work's result; None where ``stop`` came first."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        await ended(working, stopping)
