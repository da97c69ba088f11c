"""The API misbehaves for a while: errors, cut and delayed answers, expired tokens, a failing network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_MISBEHAVIOUR = (
    "status-500=0.1,status-503=0.05,cut-with-length=0.1,cut-chunked=0.05,reset=0.05,html-200=0.05,half-json=0.05,"
    "status-304=0.02,gzip-bomb=2,not-http=0.02,empty-200=0.02,repeated-record=0.1,newer-before-older=0.1,"
    "empty-pages=0.1,shifting-pages=0.1"
)
_MOST_BYTES = 3000


async def strike(stage: Stage, rng: Random) -> None:
    wire, call = stage.wires["source"], stage.scene.played.call
    fault = rng.choice(
        (
            lambda: call("profiles?on=1"),
            lambda: call("profiles?on=1"),
            lambda: call("expire"),
            lambda: call("expire?pages=1"),
            lambda: call("blank?on=1"),
            wire.silence,
            wire.refuse,
            wire.reset,
            lambda: wire.cut(rng.randrange(_MOST_BYTES)),
            lambda: wire.delay(rng.random() * 0.3),
        )
    )()
    if fault is not None:
        await fault
    await stage.rest(0.2 + rng.random())
    wire.mend()
    await call("blank?on=0")
    await call("profiles?on=0")


FAULT = Fault(
    "source",
    "API errs, cuts, delays, forgets tokens, shows nothing",
    "rounds fail, nothing is skipped or removed",
    strike,
    Setting(between=frozenset({"source"}), misbehaviour=_MISBEHAVIOUR),
    patience=90.0,
)
