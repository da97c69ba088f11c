"""APIs that page, count and refuse in other ways than the sandbox does by default can all be read.

The profiles of the sandbox are the cases. For each: first reading, changes, a reading while records change, expired
tokens, withdrawals; then the stream matches the source's own history.
"""

from __future__ import annotations

from enum import Enum, auto
from pathlib import Path
from typing import Final

import pytest

from poller.sandbox.faults.base import ProfileKind
from poller.sandbox.faults.registry import PROFILES
from tests.harness.reading import DAY, reading
from tests.harness.scene import RESOURCES

DIALECTS: Final = [name for name, profile in PROFILES.items() if profile.kind is ProfileKind.DIALECT]

COMPOSED: Final = (
    "shifting-pages,end-empty-string,delta-last-page,repeated-record",
    "empty-pages,end-repeats-last-page,token-bound,expire-410",
    "newer-before-older,end-null,delta-first-page,expire-pages,etag",
    "same-delta,end-empty-string,expire-404,empty-pages",
    "shifting-pages,delta-moves",
    "alternating-case,shifting-pages,end-empty-page,etag",
    "no-delta,end-repeats-last-page,newer-before-older,etag",
    "respelled,shifting-pages,token-characters,unknown-members,gzip",
    "no-fields,no-delta,end-repeats-last-page",
    "limit-413,token-bound,expire-409,empty-pages",
    "partial-deltas,newer-before-older,delta-moves",
    "delta-none,expire-pages,end-null,alternating-case,repeated-record",
)
"""Combinations of profiles."""

SEEN_TOGETHER: Final = {name for names in COMPOSED for name in names.split(",")}
"""Profiles that are read alone in a thorough run only."""

OF_A_KIND: Final = {
    *("delta-empty-string", "expire-400", "expire-412", "fields-comma", "limit-400", "limit-422"),
    *("fields-brackets", "delta-every-page", "bom"),
    *(COMPOSED[3], COMPOSED[4], COMPOSED[6], COMPOSED[8], COMPOSED[9]),
}
"""Cases whose parts others cover, or that differ from another in one status or letter: thorough too."""

ASKED: Final = {
    "expire-pages": "limit = 20",  # fewer than ten pages, else no round would end
    "expire-410": "limit = 60",  # deltas of few pages, which are read again, else each round would meet an expiry
    "no-limit": "limit = 500",
    "no-fields": "fields = FIELDS\nlimit = 12",
    "limit-400": "limit = 500",
    "limit-413": "limit = 500",
    "limit-422": "limit = 500",
    "partial-deltas": "partial = true\nlimit = 12",
    "fields-repeat": 'fields = FIELDS\nlimit = 12\nfields_style = "repeat"',
    "fields-comma": 'fields = FIELDS\nlimit = 12\nfields_style = "comma"',
    "fields-brackets": 'fields = FIELDS\nlimit = 12\nfields_style = "brackets"',
    "page-token-alone": 'page_params = "token-only"\nlimit = 12',
}
"""The feed settings that a dialect needs."""

WITHOUT_DELTA: Final = {"no-delta", "delta-none", "delta-empty-string"}


class Step(Enum):
    """The condition of a round. In all but a quiet one records change while they are read."""

    RESTLESS = auto()
    QUIET = auto()
    EXPIRED = auto()


STEPS: Final = (Step.RESTLESS, Step.RESTLESS, Step.QUIET, Step.EXPIRED, Step.QUIET)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names, marks=pytest.mark.thorough if names in SEEN_TOGETHER | OF_A_KIND else ())
        for names in (*DIALECTS, *COMPOSED)
    ],
)
async def test_the_stream_is_the_source(names: str, tmp_path: Path, store: str) -> None:
    """In every dialect nothing is lost or doubled, and deltas are used where the API has them."""
    profiles = set(names.split(","))
    feed = next((ASKED[name] for name in sorted(profiles) if name in ASKED), "limit = 12")
    one_case = "alternating-case" in profiles
    async with reading(tmp_path, store, *profiles, feed=feed) as read:
        for step in STEPS:
            if step is Step.EXPIRED:
                await read.switch("expire")
            if read.results:
                read.source.change(30)
            read.source.restless = step is not Step.QUIET
            await read.good_rounds()
            if not read.source.restless:  # earlier faults are still in the stream
                verdict = await read.verdict(one_case=one_case)
                assert verdict.clean, verdict
        read.source.restless = False
        read.source.withdraw(2)
        read.now.pass_by(DAY)
        for _ in range(2):  # a record of a substream is removed when it is missing twice
            await read.good_rounds()
        assert (verdict := await read.verdict(one_case=one_case)).clean, verdict
        removed = sum(result.removed for result in read.results)
        modes = {result.mode for result in read.results}
    assert removed == 2 * len(RESOURCES)
    assert ("delta" in modes) is not (profiles & WITHOUT_DELTA != set())
