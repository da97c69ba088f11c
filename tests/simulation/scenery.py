"""What stands around the daemons of a simulated world: their configuration, the source's API, the sinks."""

from __future__ import annotations

import os
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from poller.config.load import load
from poller.sandbox.api import answer
from poller.sandbox.data import mutate
from poller.sandbox.data import seed as sow
from poller.sandbox.faults.base import Switches, switched
from poller.sandbox.history import History
from poller.sandbox.server import SEEDED_AT, application, with_connection
from tests.harness.json_values import read
from tests.harness.wishes import SECRET, Wish
from tests.receiver import receiving
from tests.simulation.counters import counting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from poller.config.settings import Settings
    from poller.config.subscriptions import SubscriptionSettings
    from tests.harness.sinks import Sinks
    from tests.receiver import Receiver
    from tests.simulation.plan import FeedPlan, Plan, SubscriptionPlan

ADDRESSES: Final = {"store": "10.0.0.2", "api": "10.0.0.3", "sinks": "10.0.0.4", "operator": "10.0.0.5"}
TOKEN: Final = "s1mulated-T0ken"  # noqa: S105 -- of no use anywhere
_SOURCE: Final = "acme"
_FEWEST: Final = 3  # records that stay: all of them gone is held until an operator releases it


def configured(plan: Plan, *, without: Collection[str] = (), feeds: Sequence[FeedPlan] | None = None) -> Settings:
    """The configuration of all daemons.

    Args:
        plan: of the run.
        without: subscriptions that are not in the file.
        feeds: that are in the file; None: those of the plan.
    """
    secret, token = kept("secret", SECRET), kept("token", TOKEN)
    lines = [
        f'[redis]\nurl = "redis://{ADDRESSES["store"]}:6379/0"\ndurability = "ignore"',
        f'[lease]\nttl = "{_duration(plan.ttl)}"\n[http]\nbind = "off"',
        f'[[sources]]\nname = "{_SOURCE}"\nbase_url = "http://{ADDRESSES["api"]}"',
        f'auth = {{ token_file = "{token}" }}\ntimeout = "{_duration(plan.timeout)}"',
        *(_feed_table(feed) for feed in (plan.feeds if feeds is None else feeds)),
        *(subscription_table(one, secret) for one in plan.subscriptions if one.id not in without),
    ]
    path = _written("configuration", "\n".join(lines))
    try:
        return load(path, {})
    finally:
        path.unlink()


def addable(plan: Plan) -> dict[str, SubscriptionSettings]:
    """The settings of the subscriptions that are added at run time, by id."""
    wanted = {one.id for one in plan.subscriptions if one.added}
    if not wanted:
        return {}
    return {one.id: one for one in configured(plan).subscriptions if one.id in wanted}


def kept(name: str, text: str) -> Path:
    """A file with this text, always at the same place: its path is a part of what the store is given."""
    path = _directory() / name
    if not (path.exists() and path.read_text() == text):
        _written(name, text).replace(path)
    return path


def _written(name: str, text: str) -> Path:
    """A file with this text, at a place of its own: simulations run side by side, and their process ids are alike."""
    number, path = tempfile.mkstemp(prefix=f"{name}.", dir=_directory())
    with os.fdopen(number, "w") as file:
        file.write(text)
    return Path(path)


def _directory() -> Path:
    directory = Path(tempfile.gettempdir()) / f"poller-simulation-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _feed_table(feed: FeedPlan) -> str:
    reconcile = "off" if feed.reconcile is None else _duration(feed.reconcile)
    when = f'cron = "{feed.cron}"' if feed.cron else f'interval = "{_duration(feed.interval)}"'
    return (
        f'[[sources.feeds]]\nresource = "{feed.resource}"\nname = "{feed.feed}"\n{when}\n'
        f'jitter = "{_duration(feed.jitter)}"\nreconcile = "{reconcile}"\nlimit = {feed.limit}'
    )


def subscription_table(one: SubscriptionPlan, secret: Path) -> str:
    """The lines of a subscription in a configuration file."""
    schedule = [_duration(one.first), *[_duration(one.further)] * 20, *["3s"] * 200]
    if one.tries:
        schedule = schedule[: one.tries]
    lines = [
        f'mode = "{one.mode}"',
        f"concurrency = {one.concurrency}",
        f'timeout = "{_duration(one.timeout)}"',
        f"retry = {{ schedule = {schedule}, jitter = 0.1 }}".replace("'", '"'),
        f'batch = {{ max_events = {one.batch}, linger = "{_duration(one.linger)}" }}',
        *([f"rate = {one.rate}"] if one.rate else []),
        *([f"feeds = {[f'{_SOURCE}/{feed}' for feed in one.feeds]}".replace("'", '"')] if one.feeds else []),
    ]
    wish = Wish(one.id, lines="\n".join(lines), signed=one.signed)
    return wish.table(secret, f"http://{ADDRESSES['sinks']}", "1s")


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


class Api:
    """The source: the sandbox's own application over a history that changes.

    Attributes:
        history: all that the source ever had.
        switches: how it misbehaves.
    """

    def __init__(self, plan: Plan, now: Callable[[], datetime], served: Callable[[str, int], None]) -> None:
        """Make the first records. ``served`` is told the address of a client and the status of its answer."""
        self._plan = plan
        self._rng = Random(f"api {plan.seed}")
        self._now = now
        self._resources = [feed.resource for feed in plan.feeds]
        self.history = History()
        self.switches = Switches(TOKEN)
        sow(self.history, self._rng, records=plan.records, at=SEEDED_AT)
        respond = switched(self.switches)(answer)
        app = application(self.history, token=TOKEN, rng=self._rng, now=now, respond=respond)
        self.app = with_connection(counting(app, served))

    def change(self) -> None:
        """Make one change to a record of the plan's feeds."""
        if self._rng.random() < self._plan.removals:
            resource = self._rng.choice(self._resources)
            present = self.history.pick(resource, self._rng)
            if present is not None and self.history.count(resource) > _FEWEST:
                self.history.remove(resource, present.id, self._now())
                return
        for _ in range(20):
            if mutate(self.history, self._rng, self._now()).resource in self._resources:
                return

    def purge(self, resource: str) -> None:
        """Remove all records of a resource."""
        while (present := self.history.pick(resource, self._rng)) is not None:
            self.history.remove(resource, present.id, self._now())

    def log(self) -> list[Mapping[str, Any]]:
        """The history as the judge reads it, of the plan's feeds."""
        return [
            {
                "version": one.number,
                "resource": one.resource,
                "id": one.id,
                "record": None if one.record is None else read(one.record),
            }
            for one in self.history.since(0)
            if one.resource in self._resources
        ]


@asynccontextmanager
async def served_sinks(sinks: Sinks) -> AsyncIterator[Receiver]:
    """The sinks on their address while the block runs."""
    async with receiving(sinks, host=ADDRESSES["sinks"], port=80, recording=False) as receiver:
        yield receiver
