"""The present state of a feed, read page by page over the daemon's HTTP service.

Each page says as of which entry of the stream it holds, read with its records in one atomic step. A reader that hands
out the stream up to that entry, then the page, then the stream from there on, sees no revision of a record fall: what
came before is contained in the page, what comes later is newer.

**Invariants**

- A page is kept in memory alone, and one at a time: after an interruption it is asked for again, as of a later entry.
- The same revision of a record gives an event with the same id, type and source as a backfill by the daemon: they are
  the daemon's.
- A page says of which generation of the feed it is: after a reset another one, and nothing of the state before counts.
- No page is given out while a silent first reading is under way: records come then of which no event is published.
- The token is sent to the host of ``api`` and to no other.
- httpx is imported when the first page is asked for, not before.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import quote, urlsplit

from cloudevents.core.v1.event import CloudEvent

PAGE_RECORDS: Final = 200
_TIMEOUT_SECONDS: Final = 60.0  # without a byte
_LONGEST_SECONDS: Final = 300.0  # for a page
_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 60.0
_GONE: Final = 410
_OK: Final = 200
_ANSWER_SECONDS: Final = 1.0  # after which an answer that is under way is looked for
_REFUSALS: Final = {
    401: "needs a valid read token: pass token=",
    403: "may not be read: set http.read_token_file of the daemon, and pass token=",
    404: "is not known there: check the name of the feed, and api=",
}


_log = logging.getLogger("poller.client")


class BootstrapRefused(Exception):
    """The daemon does not give out its records; the message says what to do."""


class PagesExpired(Exception):
    """The page is of a state that is gone: begin with the first one."""


class PagesUnavailable(Exception):
    """The daemon does not answer now. ``wait``: seconds until it may be asked again."""

    def __init__(self, reason: str, wait: float) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class PageRecord:
    """A record of a page.

    Attributes:
        subject: its id as text.
        revision: of its last event.
        sequence: likewise.
        content: as received.
        event_id: of the event of a backfill with this revision.
        source: likewise.
        type: likewise.
    """

    subject: str
    revision: int
    sequence: int
    content: Any
    event_id: str
    source: str
    type: str

    @property
    def digest(self) -> str:
        """A digest of its id: what is kept of it in Redis."""
        return blake2b(self.subject.encode(), digest_size=10).hexdigest()

    @property
    def key(self) -> str:
        """The record in this version; no entry's id looks like it."""
        return f"{self.event_id}:record"


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """Some records, and the moment at which they stood so.

    Attributes:
        link: by which the page was asked for.
        entry: the last entry of the stream at that moment.
        sequence: of the last event at that moment.
        generation: of the feed; empty: nothing was known of it yet.
        run_id: of the server's process that it was read from: another one may have gone back.
        records: in no order.
        following: the link of the next page; empty: this is the last one.
    """

    link: str
    entry: str
    sequence: int
    generation: str
    run_id: str
    records: tuple[PageRecord, ...]
    following: str


class RecordPages:
    """The pages of one feed."""

    def __init__(self, api: str, feed: str, token: str | None) -> None:
        """Take the address of the daemon's HTTP service, ``SOURCE/NAME``, and the read token; nothing is sent."""
        self._api = api.rstrip("/")
        self._feed = feed
        self._token = token
        self._client: Any = None

    @property
    def first(self) -> str:
        """The link of the first page."""
        return f"/feeds/{quote(self._feed)}/records?limit={PAGE_RECORDS}"

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def page(self, link: str) -> SnapshotPage:
        """The page of a link.

        Raises:
            PagesExpired: the link is of a state that is gone.
            PagesUnavailable: no answer now.
            BootstrapRefused: the answer will be the same again.
        """
        response = await self._answer(link)
        try:
            found = json.loads(response.content)
            records = tuple(map(_record, found["records"]))
            entry, sequence = str(found["as_of"]["entry"]), int(found["as_of"]["sequence"])
            of = str(found["generation"]), str(found["run_id"])
            is_incomplete = bool(found["silent_reading"])
        except (ValueError, KeyError, TypeError):
            why = "answers no page of records that this version reads: check api=, or update the daemon"
            raise BootstrapRefused(f"{self._api}{link} {why}") from None
        if is_incomplete:
            raise PagesUnavailable(f"{self._api}: the first reading of {self._feed} has not ended", _FIRST_WAIT)
        following = response.links.get("next", {}).get("url", "")
        if following:
            path = response.url.join(following).raw_path.decode()  # without the host: the token goes to none but that
            following = path.removeprefix(urlsplit(self._api).path)
        return SnapshotPage(link, entry, sequence, *of, records, following)

    async def generation(self) -> str:
        """The generation of the feed now. Raises the same as :meth:`page`."""
        return (await self.page(f"/feeds/{quote(self._feed)}/records?limit=1")).generation

    @staticmethod
    def events(page: SnapshotPage) -> Iterator[tuple[PageRecord, CloudEvent]]:
        """The records of a page, each with its event."""
        now = datetime.now(UTC)
        for record in page.records:
            yield record, backfilled(record, now=now)

    async def _answer(self, link: str) -> Any:
        import httpx  # noqa: PLC0415 -- a quarter of a second that other consumers need not wait for

        if self._client is None:
            headers = {"accept": "application/json"} | (
                {"authorization": f"Bearer {self._token}"} if self._token else {}
            )
            self._client = httpx.AsyncClient(headers=headers, timeout=_TIMEOUT_SECONDS, trust_env=False)
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                response = await self._client.get(f"{self._api}{link}")
        except (httpx.TransportError, TimeoutError) as error:
            raise PagesUnavailable(f"{self._api}: {str(error) or type(error).__name__}", _FIRST_WAIT) from None
        status = response.status_code
        if status == _OK:
            return response
        if status == _GONE:
            raise PagesExpired
        if status in _REFUSALS:
            raise BootstrapRefused(f"{self._api}: {self._feed} {_REFUSALS[status]} (HTTP {status})")
        raise PagesUnavailable(f"{self._api}: HTTP {status}", _wait(response.headers.get("retry-after", "")))


class ResetWatch:
    """Asks now and then for the generation of a feed, beside the reading; an answer that fails is left out."""

    def __init__(self, pages: RecordPages, period: float) -> None:
        """Take the pages of the feed, and the seconds between two questions; nothing is sent."""
        self._pages = pages
        self._period = period
        self._next = 0.0
        self._asking: asyncio.Task[str] | None = None
        self._reported = ""

    def restart(self, at: float) -> None:
        """Ask at this moment next, and leave out an answer that is under way."""
        asking, self._asking, self._next = self._asking, None, at
        if asking is not None:
            asking.cancel()

    def due(self, now: float) -> float:
        """When there is something to do."""
        return self._next if self._asking is None else now + (0 if self._asking.done() else _ANSWER_SECONDS)

    def poll(self, now: float) -> str:
        """The generation, once after each answer; empty: there is none now."""
        if self._asking is None and now >= self._next:
            self._next = now + self._period
            self._asking = asyncio.create_task(self._ask(), name="the generation of a feed")
        if self._asking is None or not self._asking.done():
            return ""
        asking, self._asking = self._asking, None
        return "" if asking.cancelled() else asking.result()

    async def aclose(self) -> None:
        """Ask no more."""
        asking = self._asking
        self.restart(0.0)
        if asking is not None:
            await asyncio.wait([asking])

    async def _ask(self) -> str:
        try:
            return await self._pages.generation()
        except (PagesExpired, PagesUnavailable, BootstrapRefused) as error:
            if self._reported != str(error):
                _log.info("a reset of the feed would not be noticed now: %s", error)
                self._reported = str(error)
            return ""


def backfilled(record: PageRecord, *, now: datetime) -> CloudEvent:
    """The event of a record that is there: created, with the cause ``backfill``."""
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "id": record.event_id,
        "source": record.source,
        "type": record.type,
        "subject": record.subject,
        "time": _modified(record) or now,
        "recordedtime": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "sequence": f"{record.sequence:020d}",
        "partitionkey": record.subject,
        "datacontenttype": "application/json",
        "cause": "backfill",
    }
    return CloudEvent(attributes, {"record": record.content, "revision": record.revision, "cause": "backfill"})


def _record(found: Mapping[str, Any]) -> PageRecord:
    event = found["event"]
    return PageRecord(
        str(found["id"]),
        int(found["revision"]),
        int(found["sequence"]),
        found["record"],
        str(event["id"]),
        str(event["source"]),
        str(event["type"]),
    )


def _modified(record: PageRecord) -> datetime | None:
    text = record.content.get("lastModifiedAt") if isinstance(record.content, dict) else None
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


def _wait(text: str) -> float:
    return min(max(float(text), _FIRST_WAIT), _LONGEST_WAIT) if text.isascii() and text.isdecimal() else _FIRST_WAIT
