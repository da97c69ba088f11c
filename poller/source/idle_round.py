"""A round that brings nothing new, which is most of all rounds: one request to the API and one script.

Theory of operation
-------------------
An ordinary round asks the store twice: where it starts, and at its end with the marks. Where the round before has
brought nothing new, this process knows what the first answer would be, for only the owner of the lease changes a feed,
and operators by commands that it hears of. So the delta is requested immediately, and the script that writes the marks
checks, in the same step, that the feed is exactly as it is known: the lease, the whole of its state, what is stored,
and the stream. If it is not, or the delta has records, or anything fails, an ordinary round follows. That uses the
answer at hand if the feed is at the same event and token as when it was requested.

**Invariants**

- Nothing is written here but the marks that an ordinary round without news would write, to the same state.
- The answer at hand counts only if the lease was kept from before the request was sent: an older answer must not be
  compared with what another process has published since.
- What an ordinary round would have to settle (orders, held versions, a reading that is due, a refused token) makes the
  round ordinary from its beginning.
- While the store does not answer, the API is asked once, and not again before the store has answered.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from poller.changes.plan import Commit
from poller.clock import Clock, rfc3339
from poller.errors import PollerError, SourceNonsense, StoreError, StoreUnavailable
from poller.failpoints import reach
from poller.lifecycle import in_turns
from poller.source.client import ConditionalReader
from poller.source.feed import Feed, RoundMode, RoundResult, due_mode, is_recheck_due, recheck_wait
from poller.source.paging import SINCE, Get, Page, Params, capabilities_of, decode_page
from poller.source.writer import RoundStore, sequence_of_token, token_mark
from poller.store.feed_state import (
    DELTA_TOKEN,
    DELTA_TOKEN_AT,
    GOOD_AT,
    NEXT_AT,
    ROUND,
    ROUND_AT,
    TOKEN_SEQUENCE,
    FeedState,
    IdleStart,
)

_LONGEST: Final = 4096  # bytes of an answer that may be without records; longer ones are decoded by the ordinary round


def idle_start(feed: Feed, state: FeedState, digest: bytes, now: datetime) -> IdleStart | None:
    """Where a delta starts that leaves nothing but its marks if it has no records; None: the round is an ordinary one.

    Args:
        feed: to be read.
        state: of the feed.
        digest: of the state in the store; empty: unknown.
        now: the store's clock.
    """
    mode, token = due_mode(feed, state, now)
    if mode is not RoundMode.DELTA or token is None or state.read_at is None or not digest:
        return None
    learnt = capabilities_of(state.learnt).about(feed.fingerprint)
    query = learnt.applied(feed.query)
    is_known = (
        learnt.paging is not None
        and (state.id_field, state.origin, state.fields) == (feed.id_field, feed.origin.mark, query.fields)
        and sequence_of_token(state.token_sequence, token) == state.sequence
    )
    has_open = (
        state.held is not None
        or state.held_origin is not None
        or state.held_versions
        or state.second_look is not None
        or state.progress is not None
        or state.token_failures
        or state.refusals
    )
    if has_open or not is_known:
        return None
    return IdleStart(
        feed, digest, state.generation, state.sequence, token, state.read_at, state.recheck_at, query.first(None)
    )


def _request(start: IdleStart) -> Params:
    return (*start.params, (SINCE, start.delta_token))


class IdleAttempt:
    """An attempt at a round without news, and the answer that it leaves for an ordinary one.

    Attributes:
        began_at: when the round began, by the store's clock.
    """

    def __init__(
        self,
        feed: Feed,
        store: RoundStore,
        get: Get,
        clock: Clock,
        *,
        answers: ConditionalReader | None,
        next_at: Callable[[], datetime | None],
    ) -> None:
        """Begin the round; nothing is sent.

        Args:
            feed: what to read.
            store: where it is stored.
            get: one exchange with the API.
            clock: the store's.
            answers: the owner of ``get``, if listings are requested conditionally.
            next_at: returns when the next round is due, if that is known at the end of this one.
        """
        self._feed = feed
        self._store = store
        self._get = get
        self._clock = clock
        self.began_at = clock.now()
        self._started = clock.monotonic()
        self._answers = answers
        self._next_at = next_at
        self._start: IdleStart | None = None  # of the request that was sent
        self._at_hand: list[bytes | PollerError | None] = []

    @property
    def seconds(self) -> float:
        """How long the round has taken."""
        return round(self._clock.monotonic() - self._started, 3)

    async def from_memory(self) -> RoundResult | None:
        """The round, without a look at the store before; None: an ordinary one has to follow."""
        start = self._store.idle_start
        if start is None or start.feed is not self._feed or not self._is_delta_due(start):
            return None
        page = await self._page(start)
        if self._store.idle_start is not start:  # the lease was lost meanwhile, or an operator wants something
            self._at_hand.clear()
            return None
        return None if page is None else await self._commit_marks(start, page)

    async def from_state(self, state: FeedState) -> RoundResult | None:
        """The round, from the state that the store has just given; None: an ordinary one has to follow."""
        if self._start is not None:
            return None
        start = idle_start(self._feed, state, self._store.state_digest, self.began_at)
        page = None if start is None else await self._page(start)
        return None if start is None or page is None else await self._commit_marks(start, page)

    def has_answer(self, state: FeedState) -> bool:
        """Whether an ordinary round from this state has its first answer at hand; :meth:`get` gives it."""
        start = self._start
        if start is None or not self._at_hand:
            return False
        asked = (start.generation, start.sequence, start.delta_token)
        return asked == (state.generation, state.sequence, state.delta_token)

    async def get(self, path: str, params: Params) -> bytes | None:
        """One exchange with the API, or the answer at hand."""
        start = self._start
        if start is None or not self._at_hand or (path, params) != (self._feed.resource.path, _request(start)):
            return await self._get(path, params)
        answer = self._at_hand.pop()
        if isinstance(answer, PollerError):
            raise answer
        return answer

    def _is_delta_due(self, start: IdleStart) -> bool:
        """Whether no full reading is, which is all that time alone brings."""
        reconcile, now = self._feed.reconcile, self.began_at
        is_late = reconcile is not None and abs(now - start.read_at) >= reconcile
        return not is_late and not is_recheck_due(self._feed, start.recheck_at, now)

    async def _page(self, start: IdleStart) -> Page | None:
        """The page of a delta without records; None: the answer is another one, and at hand."""
        self._start = start
        if self._answers is not None:
            self._answers.start_round(None, now=self.began_at)
        try:
            body = await self._get(self._feed.resource.path, _request(start))
        except PollerError as error:
            self._at_hand.append(error)
            return None
        reach("page.fetched")
        self._at_hand.append(body)
        if body is None or len(body) > _LONGEST:
            return None
        try:
            page = await in_turns(decode_page(body))
        except SourceNonsense:
            return None
        return page if not page.results and page.page_token is None else None

    async def _commit_marks(self, start: IdleStart, page: Page) -> RoundResult | None:
        reach("round.read")
        token = page.delta_token or start.delta_token
        result = RoundResult(
            feed=self._feed.id,
            mode=RoundMode.DELTA,
            ok=True,
            pages=1,
            seconds=self.seconds,
            token="moved" if page.delta_token else "kept",
        )
        now = self._clock.now()
        if start.recheck_at is not None:
            result.recheck = recheck_wait(self._feed, start.recheck_at, now) or timedelta()
        marks = self._marks(result, page.delta_token, now)
        if token != start.delta_token:
            marks[TOKEN_SEQUENCE] = token_mark(start.sequence, token)
        after = msgspec.structs.replace(start, delta_token=token)
        try:
            if not await self._store.end_idle_round(after, Commit(start.generation, start.sequence, marks=marks)):
                return None
        except StoreError as error:
            return msgspec.structs.replace(result, ok=False, error=str(error), away=isinstance(error, StoreUnavailable))
        self._store.deltas.start(start.delta_token)
        self._store.deltas.finish(token)
        reach("round.done")
        return result

    def _marks(self, result: RoundResult, token: str | None, at: datetime) -> dict[str, str | None]:
        """Those of :func:`poller.source.round.round_marks` that such a round changes."""
        now, next_at = rfc3339(at), self._next_at()
        marks: dict[str, str | None] = {
            ROUND: msgspec.json.encode(result.public).decode(),
            ROUND_AT: now,
            GOOD_AT: now,
        }
        if next_at is not None:
            marks[NEXT_AT] = rfc3339(next_at if result.recheck is None else min(next_at, at + result.recheck))
        if token is not None:
            marks |= {DELTA_TOKEN: token, DELTA_TOKEN_AT: now}
        return marks
