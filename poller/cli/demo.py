"""``poller demo``: the whole system on one machine, with nothing to configure.

A sandbox API that changes, the daemon that polls it, a receiver of webhooks, and a reader of the streams. Each event is
shown when it comes by stream and when it comes by webhook. Only the API is simulated.

**Invariants**

- Everything is in a temporary directory and ends with the command.
- What is shown as verified came over a socket to the receiver of the client library, and is acknowledged after that.
- ``--keep`` leaves the same configuration with the usual addresses. It overwrites nothing, and files that hold a
  secret are readable by their owner alone.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from poller.cli.options import CommandLine, GlobalOptions, utc_now
from poller.cli.output import Line, count, warn, write_line, write_styled
from poller.errors import ConfigurationError, PollerError, StoreUnavailable
from poller.resources import RESOURCES

if TYPE_CHECKING:
    import asyncio
    from random import Random

    from poller.cli.event_lines import EventView
    from poller.client import ReceivedEvent, WebhookRefused
    from poller.config.settings import Settings
    from poller.sandbox.history import History
    from poller.store.stream import Entry

    Reports = asyncio.Queue[tuple[datetime, ReceivedEvent | WebhookRefused]]

_CHANGES_PER_SECOND: Final = 4.0
_RECORDS: Final = 120
_SEED: Final = 33  # its first ten changes show several resources
_PAGE_PORT: Final = 8080
_SECRET_BYTES: Final = 32
_BLOCK: Final = timedelta(milliseconds=250)
_READING_PATIENCE: Final = 60.0  # seconds for the first reading; a busy machine is slow
_WEBHOOKS_PATIENCE: Final = 15.0  # seconds for the last webhooks, also after Ctrl-C
_STOP_PATIENCE: Final = 6.0  # seconds; a commit in progress has five

_BY_WEBHOOK: Final = "by webhook, signature ok"
_SHOWN_OF_SUBJECT: Final = 4  # on 80 columns the change is seen, too
_WIDTH: Final = max(map(len, (*RESOURCES, _BY_WEBHOOK)))

_CONFIGURATION: Final = """\
# `poller sandbox` plays the API, `poller receive --secret-file secret` takes the webhooks, `poller schema config`
# describes every key.

[embedded]
data_dir = "data"                        # an embedded Valkey keeps its data here; or: [redis] url = "redis://..."

[http]
bind = "{bind}"                  # the page, health, metrics

[[sources]]
name = "acme"
base_url = "{url}"       # the address of your API
auth = {{ token_file = "token" }}          # its bearer token
{feeds}
[[subscriptions]]
id = "rostering"
sink = "{sink}"
allow_hosts = ["127.0.0.1"]              # else a sink on this machine is refused
secret_files = ["secret"]                # signs the webhooks
start = "earliest"                       # existing records come first
"""
_FEED: Final = """
[[sources.feeds]]
resource = "{resource}"
interval = "{seconds}s"
"""
_RECEIVER: Final = '''\
"""A receiver of webhooks to build upon: verifies signatures and drops repeats. `python receiver.py`, until Ctrl-C."""

from pathlib import Path

import uvicorn

from poller.client import Receiver

SECRET = Path(__file__).with_name("secret").read_text("utf-8")


async def handle(event):
    """Do the work. An event is acknowledged when this returns, and comes again after an exception."""
    print(event.get_type(), event.get_subject(), event.get_data().get("revision"), flush=True)


if __name__ == "__main__":
    uvicorn.run(Receiver(handle, SECRET), host="127.0.0.1", port=8000, log_level="warning")
'''
_KEPT_FILES: Final = ("poller.toml", "token", "secret", "receiver.py", "data")
_NEXT_STEPS: Final = """
{kept} has a configuration, a token and a secret. To continue, in a terminal each:
  {poller} sandbox
  {poller} receive --secret-file {kept}/secret
  {poller} run -c {kept}/poller.toml
{kept}/receiver.py is a receiver to build upon; start it in place of `receive`."""

app = CommandLine()


@app.command(example="demo --seconds 10 --keep trial", logs="warning")
async def demo(
    options: GlobalOptions,  # noqa: ARG001 -- the demo has its own configuration
    *,
    seconds: Annotated[float | None, typer.Option(min=0, help="Default: until Ctrl-C.", show_default=False)] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Leave a configuration, token, secret and receiver to continue with.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the whole system on one machine. Shows each change by stream and by webhook; nothing to configure."""
    from tempfile import TemporaryDirectory

    from poller.lifecycle import stopped_by_signals

    with stopped_by_signals() as stop:  # from here on, what was begun is brought to its end
        if keep is not None:
            _keep(keep)
        with TemporaryDirectory(prefix="poller-demo-") as directory:
            await _run(Path(directory), seconds, stop)
    if keep is not None:
        from shlex import quote
        from shutil import which

        poller = "poller" if which("poller") else sys.argv[0]
        write_line(_NEXT_STEPS.format(kept=quote(str(keep)), poller=quote(poller)))


async def _run(directory: Path, seconds: float | None, stop: asyncio.Event) -> None:
    import asyncio
    from random import Random

    from poller.client import Receiver
    from poller.clock import Clock
    from poller.http.server import listening
    from poller.sandbox.data import seed
    from poller.sandbox.history import History
    from poller.sandbox.server import SANDBOX_TOKEN, SEEDED_AT, serving
    from poller.store.session import clock_of, opened_store

    history, rng = History(), Random(_SEED)  # noqa: S311 -- made-up records, not secrets
    seed(history, rng, records=_RECORDS, at=SEEDED_AT)
    reports: Reports = asyncio.Queue()

    async def report(event: ReceivedEvent) -> None:
        reports.put_nowait((utc_now(), event))

    secret = _write_secret(directory).read_text("utf-8")
    verified = Receiver(report, secret, on_refusal=lambda reason: reports.put_nowait((utc_now(), reason)))
    async with serving(history, rng=rng) as url, listening(verified, "127.0.0.1", 0, clock=Clock()) as receiver:
        bind = _free_address()
        settings = _settings(directory, url=url, sink=f"{receiver}/hooks", bind=bind)
        async with opened_store(settings, clock=clock_of(settings, Clock())) as store:
            write_line(f"The page is on http://{bind}/")
            write_line(
                f"A sandbox API on {url} (token: {SANDBOX_TOKEN}) changes {_CHANGES_PER_SECOND:g} records a second."
            )
            write_line(f"poller polls it and publishes each change once, to streams in {store.shown}")
            write_line(f"It delivers each event to a receiver on {receiver}, which verifies its signature.")
            write_line("Ctrl-C ends it.")
            stage = _Stage(settings, store.url, history, reports)
            try:
                await stage.show(rng, stop, seconds)
            finally:
                await stage.close()


def _free_address() -> str:
    """The page's usual address, or another port if that is taken."""
    from poller.http.server import listener

    try:
        found = listener("127.0.0.1", _PAGE_PORT)
    except PollerError:
        found = listener("127.0.0.1", 0)
    with found:
        return f"127.0.0.1:{found.getsockname()[1]}"


class _Stage:
    """The running daemon, the reader of its streams, and the reader of the receiver's reports."""

    def __init__(self, settings: Settings, url: str, history: History, reports: Reports) -> None:
        """Begin to poll, to deliver and to read.

        Args:
            settings: of the daemon; its feeds are named like the sandbox's resources.
            url: of the store, which is open.
            history: the sandbox's.
            reports: of the receiver: what came, or why it was refused, and when.
        """
        import asyncio

        from poller import app as daemon
        from poller.clock import Clock

        self._history = history
        self._first: Counter[str] = Counter()  # records of the first reading, by resource
        self._published: dict[str, datetime] = {}
        self._delivered: set[str] = set()
        self._shown: Counter[Callable[..., Line]] = Counter()
        self._is_over = False  # the daemon may still publish while it stops: nothing is shown after the last line
        self._news = asyncio.Event()
        self._stop = asyncio.Event()
        running = daemon.run(settings, {}, stop=self._stop, clock=Clock())
        self._daemon = asyncio.create_task(running, name="the daemon")
        self._readers = (
            asyncio.create_task(self._read(settings, url), name="the reader"),
            asyncio.create_task(self._receive(reports), name="the webhook receiver"),
        )

    async def show(self, rng: Random, stop: asyncio.Event, seconds: float | None) -> None:
        """Show the first reading in a line for each resource, then each change, and at the end how many came.

        Args:
            rng: chooses the changes.
            stop: ends it.
            seconds: how long changes are made; None: until stopped.

        Raises:
            PollerError: the first reading does not end, a webhook was refused, or a part ended by itself.
        """
        expected = {resource: self._history.count(resource) for resource in RESOURCES}
        if not await self._until(lambda: stop.is_set() or self._first >= Counter(expected), _READING_PATIENCE):
            raise PollerError(f"the first reading did not end within {_READING_PATIENCE:g} s")
        for resource in RESOURCES:
            write_line(f"{resource:<{_WIDTH}}  {count(self._first[resource], 'record')} read")
        await self._make_changes(rng, stop, seconds)
        await self._until(lambda: self._published.keys() == self._delivered, _WEBHOOKS_PATIENCE)
        self._is_over = True
        write_line("")
        write_line(
            f"The demo ended: {count(self._shown[stream_line], 'change')} by stream, "
            f"{self._shown[webhook_line]} by webhook."
        )

    async def close(self) -> None:
        """Stop the daemon in order, cancel it if it does not stop, then the readers."""
        import asyncio

        from poller.lifecycle import ended

        self._stop.set()
        await asyncio.wait({self._daemon}, timeout=_STOP_PATIENCE)
        await ended(self._daemon, *self._readers)

    async def _make_changes(self, rng: Random, stop: asyncio.Event, seconds: float | None) -> None:
        import asyncio

        from poller.lifecycle import ended
        from poller.sandbox.data import mutate
        from poller.sandbox.server import repeat

        changing = asyncio.create_task(
            repeat(lambda: mutate(self._history, rng, utc_now()), per_second=_CHANGES_PER_SECOND)
        )
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait(
                {changing, stopping, self._daemon, *self._readers}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            self._raise_failure()
        finally:
            await ended(changing, stopping)

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition; False after this long."""
        import asyncio

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_so():
                    self._raise_failure()
                    self._news.clear()
                    await self._news.wait()
                return True
        return False

    def _raise_failure(self) -> None:
        for task in (self._daemon, *self._readers):
            if task.done():
                task.result()
                raise PollerError(f"{task.get_name()} ended by itself")

    async def _read(self, settings: Settings, url: str) -> None:
        from poller.clock import Clock
        from poller.control.factories import keys_of
        from poller.store.session import blocking_client
        from poller.store.stream import EARLIEST, followed

        feeds = {keys_of(settings, feed_id).events: feed_id for feed_id in settings.feed_ids}
        clock = Clock()
        async with blocking_client(url, block=_BLOCK, clock=clock) as client:
            start = dict.fromkeys(feeds, EARLIEST)
            async for entries in followed(client, start, block=_BLOCK, away=_ignore, clock=clock):
                for entry in entries:
                    self._read_entry(entry, feeds[entry.key])
                self._news.set()

    def _read_entry(self, entry: Entry, feed_id: str) -> None:
        from poller.cli.event_lines import Unreadable, read_event, readable

        resource, at = feed_id.partition("/")[2], utc_now()
        try:
            with readable(entry.event, feed=feed_id, entry_id=entry.id):
                event = read_event(entry.event)
                self._published.setdefault(event.id, at)
                if event.data.cause == "baseline":
                    self._first[resource] += 1
                else:
                    self._write(stream_line, event, resource, at)
        except Unreadable as reason:
            warn(str(reason))

    async def _receive(self, reports: Reports) -> None:
        from poller.cli.event_lines import read_event
        from poller.client import WebhookRefused

        while True:
            at, report = await reports.get()
            if isinstance(report, WebhookRefused):
                raise PollerError(f"a webhook was refused: {report}")
            event = read_event(report.to_json())
            if event.id not in self._delivered and event.data.cause != "baseline":
                self._write(webhook_line, event, self._published.get(event.id), at)
            self._delivered.add(event.id)
            self._news.set()

    def _write(self, line: Callable[..., Line], event: EventView, *more: object) -> None:
        if self._is_over:
            return
        write_styled(line(event, *more), cut=True)
        self._shown[line] += 1


def _ignore(_: StoreUnavailable) -> None:
    """The daemon logs it."""


def stream_line(event: EventView, resource: str, at: datetime) -> Line:
    """The line of an event that was read from its stream at ``at``: what has changed."""
    from poller.cli.event_lines import what_changed

    return [*_start(event, (resource, ""), at), (what_changed(event.data), "")]


def webhook_line(event: EventView, published: datetime | None, at: datetime) -> Line:
    """The line of an event that came by webhook at ``at``: its delay, and how long after its stream it came."""
    delay = max(0.0, (at - datetime.fromisoformat(event.time)).total_seconds())
    after = ""
    if published is not None:  # the two readers race: what is read later may have been sent earlier
        after = f", {max(0.0, (at - published).total_seconds()) * 1000:.0f} ms after the stream"
    return [*_start(event, (_BY_WEBHOOK, "cyan"), at), (f"{delay:.2f} s{after}", "dim")]


def _start(event: EventView, way: tuple[str, str], at: datetime) -> Line:
    """The columns that both lines of an event have in common."""
    from poller.cli.event_lines import record_parts

    name, style = way
    return [(f"{at:%H:%M:%S}", "dim"), (f"  {name:<{_WIDTH}}  ", style), *record_parts(event, _SHOWN_OF_SUBJECT)]


def _settings(directory: Path, *, url: str, sink: str, bind: str) -> Settings:
    from poller.config.load import load

    return load(_write_configuration(directory, url=url, sink=sink, bind=bind, achievements=2, others=1), {})


def _keep(directory: Path) -> None:
    """Leave a configuration, a token, a secret and a receiver for the sandbox at its usual address.

    Raises:
        ConfigurationError: one of the files exists, or the directory cannot be written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in _KEPT_FILES:
            if (directory / name).exists():
                raise ConfigurationError(f"--keep {directory}: {name} is there already; name a directory without it")
        _write_secret(directory)
        _write_file(directory / "receiver.py", _RECEIVER)
        _write_configuration(
            directory,
            url="http://127.0.0.1:8090",
            sink="http://127.0.0.1:8000/",
            bind="127.0.0.1:8080",
            achievements=10,
            others=5,
        )
    except OSError as error:
        raise ConfigurationError(f"--keep {directory}: {error.strerror or error}") from error


def _write_configuration(directory: Path, *, url: str, sink: str, bind: str, achievements: int, others: int) -> Path:
    """Write the configuration and its token; ``achievements`` and ``others`` are intervals in seconds."""
    from poller.sandbox.server import SANDBOX_TOKEN

    _write_file(directory / "token", SANDBOX_TOKEN)
    intervals = {resource: achievements if resource == "achievements" else others for resource in RESOURCES}
    feeds = "".join(_FEED.format(resource=resource, seconds=seconds) for resource, seconds in intervals.items())
    return _write_file(directory / "poller.toml", _CONFIGURATION.format(url=url, sink=sink, bind=bind, feeds=feeds))


def _write_secret(directory: Path) -> Path:
    import secrets

    from poller.delivery.signing import new_secret

    return _write_file(directory / "secret", new_secret(secrets.token_bytes(_SECRET_BYTES)))


def _write_file(file: Path, text: str) -> Path:
    """Write a new file; a link that stands there leads nowhere, and is not followed."""
    import os

    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)
    return file
