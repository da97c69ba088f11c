"""``poller records``: the records of a feed, one of them, its history, and what the API says of it now.

**Invariants**

- Foreign text cannot control the terminal; ``--json`` writes one object a line, its values as they were received.
- Lists and histories are written while they are read: memory does not grow with them, and a reader that leaves ends
  them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from poller.cli.options import CommandLine, Feed, GlobalOptions, Json, Yes, confirm, operator, run_loop, text_of
from poller.cli.output import count, escaped, legible, warn, write_json, write_line, write_styled
from poller.errors import PollerError
from poller.text import ago

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import msgspec

    from poller.clock import Clock
    from poller.config.settings import Settings
    from poller.control.erasure import ErasureResult
    from poller.control.record_history import RecordEvent, RecordHistory
    from poller.control.records import FeedRecords, RecordDetails, RecordLine, SourceAnswer, ValueChange
    from poller.store.erasure import ErasedEvents

_Id = Annotated[str, typer.Argument(metavar="ID", help="The record's id, as received.")]
_PROGRESS_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 1.0
_CONVERTED_WITHIN: Final = timedelta(minutes=10)

app = CommandLine(
    name="records", help="Show the records of a feed, their history, what the API says of one now; erase one."
)


@app.command("list", example="records list acme/contractTypes --json")
async def list_(options: GlobalOptions, feed: Feed, *, json: Json = False) -> None:
    """List all records that are not removed, as last published, in no order."""
    from poller.control.records import FeedRecords
    from poller.store.session import ready_store

    settings = options.settings()
    listed = 0
    async with ready_store(settings) as store:
        records = FeedRecords(store.client, settings, feed, clock=store.clock)
        async with aclosing(_lines(records, store.clock)) as lines:
            async for line in lines:
                listed += 1
                if json:
                    write_json(line)
                else:
                    write_styled(_line(line), cut=True)
    if not listed and not json:
        write_line(f"{records.feed.id}: no records")
    if records.reader.unreadable:
        warn(f"{count(records.reader.unreadable, 'record')} left out, whose snapshots cannot be read")


@app.command(example="records get acme/contractTypes 0b8e7c5e-9d4a-4d9f-8a55-6c1f3f0e2a11")
async def get(options: GlobalOptions, feed: Feed, record: _Id, *, json: Json = False) -> None:
    """Show one record as last published: revision, when seen, when changed, next check."""
    from poller.control.records import FeedRecords
    from poller.store.session import ready_store

    settings = options.settings()
    async with ready_store(settings) as store:
        details = await FeedRecords(store.client, settings, feed, clock=store.clock).details(text_of(record))
        now = store.clock.now()
    if json:
        write_json(details)
        return
    for name, value in _facts(details, now):
        write_line(f"{name:<9}{value}")
    if details.record is not None:
        write_line("")
        write_line(legible(bytes(details.record)))


@app.command(example="records history acme/contractTypes 0b8e7c5e-9d4a-4d9f-8a55-6c1f3f0e2a11 --limit 5")
async def history(
    options: GlobalOptions,
    feed: Feed,
    record: _Id,
    *,
    json: Json = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most this many, the latest. Default: all.", show_default=False)
    ] = None,
) -> None:
    """Show the events of one record that the stream still holds, the latest first."""
    from poller.control.record_history import RecordHistory
    from poller.control.records import FeedRecords, RecordUnknown
    from poller.store.session import ready_store

    settings = options.settings()
    async with ready_store(settings) as store:
        records = FeedRecords(store.client, settings, feed, clock=store.clock)
        known, _ = await records.find(text_of(record))
        subject = known.subject if known else text_of(record)
        reading = RecordHistory(store.client, records.reader.keys.events, subject)
        shown, oldest = await _write_history(reading, store.clock, limit=limit, json=json)
    if reading.unreadable:
        warn(f"{count(reading.unreadable, 'event')} of it cannot be read")
    if not shown and known is None:
        raise RecordUnknown(
            f'{records.feed.id} has no record with the id "{escaped(subject)}", and its stream has no event of it; ids '
            f"are compared as received, `poller records list {records.feed.id}` shows them"
        )
    if not shown:
        warn(f"its stream holds no event of it (any more); its revision is {known.revision if known else 0}")
    elif oldest > 1 and reading.is_over:
        warn("its earlier events were trimmed from the stream, or erased")


@app.command(example="records ask acme/contractTypes 0b8e7c5e-9d4a-4d9f-8a55-6c1f3f0e2a11")
async def ask(options: GlobalOptions, feed: Feed, record: _Id, *, json: Json = False) -> None:
    """Ask the API for one record now and show how it differs. Changes nothing."""
    import os

    from poller.control.records import FeedRecords
    from poller.store.session import ready_store

    settings = options.settings()
    async with ready_store(settings) as store:
        records = FeedRecords(store.client, settings, feed, clock=store.clock)
        answer = await records.ask(text_of(record), os.environ)
    if json:
        write_json(answer)
        return
    for line in _answer_lines(answer):
        write_line(line)


@app.command(example="records erase acme/contractTypes 0b8e7c5e-9d4a-4d9f-8a55-6c1f3f0e2a11 --reason 'request 12'")
def erase(
    options: GlobalOptions,
    feed: Feed,
    record: _Id,
    *,
    reason: Annotated[str, typer.Option(help="Why, for the log of operations.", show_default=False)] = "",
    yes: Yes = False,
    force: Annotated[
        bool, typer.Option("--force", help="Do not ask the API: a record that is still there is published again.")
    ] = False,
    json: Json = False,
) -> bool:
    """Erase what is stored of one record: snapshot, events, retries, dead letters, quarantined copies."""
    settings, wanted = options.settings(), text_of(record)
    feed = run_loop(_erasable(settings, feed, wanted, force=force))
    name = f'{feed} "{escaped(wanted)}"'
    if not yes and not confirm(
        f"{name}: erase it for good?", f"{name} would be erased; --yes erases it without asking"
    ):
        raise PollerError(f"{name}: nothing was erased")
    result = run_loop(_erased(settings, feed, wanted, text_of(reason)))
    if json:
        write_json(result)
    else:
        for line in _erasure_lines(result, name):
            write_line(line)
    if result.unaware:
        warn(f"no answer from the process that delivers to {', '.join(result.unaware)}: it may send what it has read")
    return not result.unaware


async def _erasable(settings: Settings, feed: str, record: str, *, force: bool) -> str:
    """The feed, once the API has said that the record is gone."""
    import os

    from poller.control.erasure import RecordErasure, RecordStillThere
    from poller.store.session import ready_store

    async with ready_store(settings) as store:
        erasure = RecordErasure(store.client, settings, feed, record, clock=store.clock)
        if not force:
            try:
                await erasure.require_gone(os.environ)
            except RecordStillThere as error:
                raise RecordStillThere(f"{error} (--force)") from None
    return erasure.records.feed.id


async def _erased(settings: Settings, feed: str, record: str, reason: str) -> ErasureResult:
    from poller.control.erasure import RecordErasure
    from poller.store.session import ready_store

    async with ready_store(settings) as store:
        erasure = RecordErasure(store.client, settings, feed, record, clock=store.clock)
        return await erasure.erase(by=operator(), reason=reason, report=_ErasureProgress(store.clock).report)


class _ErasureProgress:
    """Says now and then how much of a long stream was looked at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said = clock.monotonic()
        self._looked_at = 0

    def report(self, part: ErasedEvents) -> None:
        self._looked_at += part.looked_at
        if self._clock.monotonic() - self._said >= _PROGRESS_SECONDS:
            self._said = self._clock.monotonic()
            warn(f"{self._looked_at} events looked at")


def _erasure_lines(result: ErasureResult, name: str) -> Iterator[str]:
    yield f"{name}: erased; a record that comes back is created with revision {result.revision + 1}"
    places = ("snapshots", "events", "retries", "dead_letters", "quarantined", "held_versions")
    if not any(getattr(result, place) for place in places):
        yield "  nothing of it was stored any more"
    for place in places:
        yield f"  {place.replace('_', ' '):<14}{getattr(result, place)}"
    if result.events:
        yield f"sequence numbers of the deleted events: {result.sequences}"
    yield f"memory of deleted events is freed by {result.gone_from_stream_by}, unless a reader holds the stream"
    if result.is_rewriting is None:
        yield "the server's files: run BGREWRITEAOF after that, delete its older backups, and see replicas"
    elif result.is_rewriting:
        yield "the server's file is written again now, without them"
    else:
        yield "the server's file could not be written again: see its log"


async def _lines(records: FeedRecords, clock: Clock) -> AsyncGenerator[RecordLine]:
    """All live records; waits while the snapshots are converted.

    Raises:
        PollerError: the feed was reset meanwhile, so what was written is of another one.
    """
    from poller.control.records import line_of
    from poller.errors import Converting

    position, generation, until = None, None, clock.monotonic() + _CONVERTED_WITHIN.total_seconds()
    is_waiting = False
    while True:
        try:
            chunk = await records.reader.scan(position)
        except Converting as error:
            if clock.monotonic() > until:
                raise
            if not is_waiting:
                is_waiting = True
                warn(f"{error}; waiting")
            await clock.sleep(_AGAIN_SECONDS)
            continue
        if generation not in (None, chunk.generation):
            raise PollerError(f"{records.feed.id} was reset meanwhile: the list is not complete; repeat the command")
        if chunk.restarted:
            warn("the server was restarted: the list begins again, and records come twice")
        generation = chunk.generation
        for record in chunk.records:
            yield line_of(record)
        if chunk.next is None:
            return
        position = chunk.next


async def _write_history(reading: RecordHistory, clock: Clock, *, limit: int | None, json: bool) -> tuple[int, int]:
    """Write events while they are found; how many they were, and the revision of the oldest."""
    shown = oldest = 0
    said, entries = clock.monotonic(), await reading.entries()
    async with aclosing(reading.found()) as found:
        async for event in found:
            if event is None:
                if clock.monotonic() - said >= _PROGRESS_SECONDS:
                    said = clock.monotonic()
                    warn(f"{reading.looked_at} of {entries} events looked at")
                continue
            if json:
                write_json(event)
            else:
                for line in _event_lines(event):
                    write_line(line)
            shown, oldest = shown + 1, event.revision
            if shown == limit:
                break
    return shown, oldest


def _line(line: RecordLine) -> list[tuple[str, str]]:
    from poller.cli.event_lines import EventData, what_changed

    return [
        (f"{line.changed_at or '-':<20}", "dim"),
        (f"  {escaped(line.id)}", ""),
        (f"  r{line.revision}  ", "dim"),
        (what_changed(EventData(line.revision, "", line.record)), ""),
    ]


def _facts(details: RecordDetails, now: datetime) -> Iterator[tuple[str, str]]:
    yield "id", escaped(details.id)
    yield "feed", details.feed
    yield "revision", f"{details.revision}" + ("" if details.sequence else " (no event was published of it)")
    if details.sequence:
        yield "sequence", f"{details.sequence}"
    if details.removed:
        yield "erased" if details.erased else "removed", _moment(details.changed_at, now)
        return
    yield "changed", _moment(details.changed_at, now)
    yield "seen", _moment(details.seen_at, now)
    if details.missing:
        yield "missing", "from the last full reading; the next one decides whether it is removed"
    full = details.next_full_reading_at
    yield "next", (details.next_round_at or "unknown") + (f", in full by {full}" if full else "")


def _moment(text: str | None, now: datetime) -> str:
    if text is None:
        return "unknown"
    seconds = (now - datetime.fromisoformat(text)).total_seconds()
    return f"{text} ({ago(max(seconds, 0))} ago)"


def _event_lines(event: RecordEvent) -> Iterator[str]:
    yield f"{event.recordedtime}  {event.change}  r{event.revision}  {event.cause}  {event.sequence}  {event.entry}"
    if event.record:
        yield f"  + {_shown(event.record)}"
    if event.previous:
        yield f"  - {_shown(event.previous)}"
    yield from _change_lines(event.changes)


def _change_lines(changes: Iterable[ValueChange]) -> Iterator[str]:
    for change in changes:
        yield f"  {escaped(change.pointer) or 'the whole record'}"
        if change.before:
            yield f"    - {_shown(change.before)}"
        if change.after:
            yield f"    + {_shown(change.after)}"


def _shown(raw: msgspec.Raw) -> str:
    return legible(bytes(raw), indent=-1)


def _answer_lines(answer: SourceAnswer) -> Sequence[str]:
    known = {
        "live": f"known, revision {answer.revision}",
        "removed": f"known as removed, revision {answer.revision}",
        "erased": f"erased here, revision {answer.revision}",
        "unknown": "unknown here",
    }[answer.known]
    name = f"{answer.feed} {escaped(answer.id)}"
    if answer.answer == "gone":
        follows = {
            "live": "; a full reading and a second answer confirm that before it is published as removed",
            "removed": "",
            "erased": "",
            "unknown": "",
        }[answer.known]
        return [f"{name}: the API has no such record (status {answer.status}); {known}{follows}"]
    lines = [f"{name}: the API has it; {known}"]
    if answer.known != "live":
        shown = legible(bytes(answer.record)) if answer.record is not None else ""
        return [*lines, "the next reading that lists it publishes it as created", "", shown]
    if not answer.changes:
        return [*lines, "no difference that counts"]
    return [*lines, "- is known, + is what the API has now:", *_change_lines(answer.changes)]
