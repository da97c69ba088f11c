"""Programs that are wrong on purpose, and how many seeds it takes until the simulation says so.

``python -m tests.simulation.mutations`` puts each mistake into a copy of the package, plays seeds until one fails, and
prints the table of ``tests/README.md``. A mistake that no seed finds is a hole in the simulation: exit code 1.

Some mistakes need a fault that few seeds have; their seeds lean towards it, and the table says so.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests.documents import table, write_table
from tests.harness import naive, naive_dispatcher
from tests.simulation.plan import Deed, Plan, calm
from tests.simulation.world import Result, play

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from poller.clock import Clock
    from poller.config.settings import Settings

_ROOT: Final = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mistake.

    Attributes:
        name: of the mistake.
        what: the mistake, as the table tells it.
        changes: files of the package, each with texts and what replaces them.
        lean: see :func:`~tests.simulation.plan.drawn`.
    """

    name: str
    what: str
    changes: Mapping[str, tuple[tuple[str, str], ...]]
    lean: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Caught:
    """What came of a mutation: how many seeds were played, and what was found; None: nothing was."""

    seeds: int
    problem: str | None
    seconds: float


_FENCED = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {} end\n"
_STORED = "  redis.call('HSET', KEYS[4], unpack("
_REMOVED = "  redis.call('HDEL', KEYS[4], unpack("
_HOLDER = "if holder and holder ~= ARGV[1] then"

MUTATIONS: Final = (
    Mutation(
        "commit-unfenced",
        "the commit does not ask whose lease it is",
        {"store/lua/commit.lua": ((_FENCED.format("'FENCED'"), ""),)},
        ("freeze", "slow", "busy"),
    ),
    Mutation(
        "settle-unfenced",
        "acknowledging does not ask whose lease it is",
        {"store/lua/settle_deliveries.lua": ((_FENCED.format("0"), ""),)},
        ("freeze", "partition", "slow", "sink_down"),
    ),
    Mutation(
        "read-unfenced",
        "reading for a subscription does not ask whose lease it is",
        {"store/lua/read_entries.lua": (("  elseif holder ~= nonce then\n    answer = 0\n", ""),)},
        ("slow", "late", "busy"),
    ),
    Mutation(
        "lease-stolen",
        "a lease is taken that another process has",
        {"store/lua/acquire_lease.lua": ((_HOLDER, "if false then"),)},
        ("kill", "stop", "busy"),
    ),
    Mutation(
        "round-stolen",
        "a round begins under a lease that another process has",
        {"store/lua/begin_round.lua": ((_HOLDER, "if false then"),)},
        ("freeze", "slow", "busy"),
    ),
    Mutation(
        "idle-unfenced",
        "a round without news ends under a lease that another process has",
        {"store/lua/end_idle_round.lua": (("redis.call('GET', KEYS[1]) ~= ARGV[1] or ", ""),)},
        ("freeze", "slow", "busy"),
    ),
    Mutation(
        "lease-of-others-renewed",
        "a lease is renewed and released although another process has it",
        {"store/lua/renew_lease.lua": ((_FENCED.format("0"), ""),)},
        ("freeze", "partition", "stop"),
    ),
    Mutation(
        "lease-kept",
        "a process that ends releases no lease",
        {"store/lua/renew_lease.lua": (("redis.call('DEL', KEYS[1])", "redis.call('GET', KEYS[1])"),)},
    ),
    Mutation(
        "commit-twice",
        "a commit whose reply was lost is written again",
        {
            "store/lua/commit.lua": (
                ("if ARGV[5] ~= '' and have[3] == ARGV[5] and have[2] == ARGV[4] then return 'ALREADY' end\n", ""),
                ("if have[2] ~= ARGV[3] then return 'STALE' end\n", ""),
            )
        },
        ("lose_reply", "busy"),
    ),
    Mutation(
        "retry-not-stored",
        "a scheduled retry is acknowledged and not stored",
        {
            "store/lua/settle_deliveries.lua": (
                ("  redis.call('HSET', KEYS[4], unpack(ARGV, i,", "  local _ = (unpack(ARGV, i,"),
            )
        },
        ("sink_down", "kill", "long"),
    ),
    Mutation(
        "retry-not-removed",
        "a retry that was delivered stays scheduled",
        {
            "store/lua/settle_deliveries.lua": (
                ("  redis.call('HDEL', KEYS[4], unpack(ARGV, i,", "  local _ = (unpack(ARGV, i,"),
            )
        },
        ("sink_down", "kill"),
    ),
    Mutation(
        "pause-ignored",
        "a round begins although the feed is paused",
        {"store/lua/begin_round.lua": (("if pause then return pause end\n", ""),)},
        ("pause_feed",),
    ),
    Mutation(
        "dead-member-stays",
        "a process that died counts as there for ever",
        {"store/lua/meet_members.lua": (("'-inf', string.format('%.0f', now))", "'-inf', '0')"),)},
        ("kill",),
    ),
    Mutation(
        "queue-not-shut",
        "the next event of a record is sent before the one before it is settled",
        {
            "delivery/delivery_tracker.py": (
                ("            batch.reopen.append(key)\n", "            self._go_on(key)\n"),
            )
        },
        ("kill", "busy", "distant", "few"),
    ),
    Mutation(
        "queue-reversed",
        "a later event of a record is put before those that wait",
        {"delivery/key_queues.py": (("            queue.append(entry)\n", "            queue.insert(1, entry)\n"),)},
        ("sink_down", "pause_subscription"),
    ),
    Mutation(
        "late-interval",
        "a wall clock that is set back delays rounds by as much (past defect 2)",
        {
            "daemon/schedule.py": (
                ("        if jumped < -_JUMP:  # the waits stay as they were\n", "        if False:\n"),
                ("            return wall + timing.interval + timing.jitter\n", "            return None\n"),
            )
        },
        ("clock_jump",),
    ),
    Mutation(
        "late-cron",
        "the same for a feed with a cron expression (past defect 2)",
        {
            "daemon/schedule.py": (
                ("        if jumped < -_JUMP:  # the waits stay as they were\n", "        if False:\n"),
                ("if changed else None\n        return due and", "if False else None\n        return due and"),
            )
        },
        ("clock_jump", "cron"),
    ),
    Mutation(
        "sink-pause-by-wall-clock",
        "a sink's pause is kept by the clock of the process, and not capped (past defect 1)",
        {
            "delivery/endpoint.py": (
                (
                    "until(self.subscription.id, self._clock.now() + timedelta(seconds=left))",
                    "until(self.subscription.id, self._clock.process.now() + timedelta(seconds=left))",
                ),
            ),
            "store/lua/note_sink_pause.lua": (("now + tonumber(ARGV[3])\n", "now + 1e14\n"),),
        },
        ("sink_pause", "skew", "kill", "stop"),
    ),
    Mutation(
        "retention-by-wall-clock",
        "events are trimmed by the clock of the process (past defect 3)",
        {"daemon/retention_role.py": (("now=self._clock.now())", "now=self._clock.process.now())"),)},
        ("skew", "kill", "stop"),
    ),
    Mutation(
        "failures-by-wall-clock",
        "how long a sink has failed is counted by the clock of the process (past defect 4)",
        {
            "delivery/endpoint.py": (
                ("clock=self._clock.monotonic())\n", "clock=self._clock.process.now().timestamp())\n"),
            ),
            "delivery/endpoint_health.py": (
                ("return min(max(clock - self._failed, 0.0), self._longest)", "return max(clock - self._failed, 0.0)"),
            ),
        },
        ("sink_down", "clock_jump", "far", "long"),
    ),
    Mutation(
        "retries-by-wall-clock",
        "when a retry is due is stored by the clock of the process (past defect 5)",
        {
            "delivery/dispatcher.py": (
                ("clock, now = self._clock, self._clock.now()", "clock, now = self._clock, self._clock.process.now()"),
            ),
            "delivery/delivery_tracker.py": (
                (
                    "min(max(one.due / 1000 - now.timestamp(), 0.0), longest)",
                    "max(one.due / 1000 - now.timestamp(), 0.0)",
                ),
            ),
        },
        ("sink_down", "skew", "kill", "long"),
    ),
    Mutation(
        "renamed-feed-forgotten",
        "what waits at a feed that was renamed is delivered no more (past defect 7)",
        {
            "daemon/cluster/membership.py": (
                ("self.orphans = orphaned(found, seen, self._own)", "self.orphans = orphaned([], seen, self._own)"),
            )
        },
        ("rename_feed", "sink_down"),
    ),
    Mutation(
        "half-kept",
        "a feed that has lost a part of what is stored of it goes on with the rest",
        {"store/lua/begin_round.lua": (("lost(counted(KEYS[3], KEYS[4], KEYS[5]), have[3], have[2]) or ''", "''"),)},
        ("evict_key",),
    ),
    Mutation(
        "baseline-repeated",
        "the baseline of a feed that was reset is sent again",
        {"delivery/filters.py": (('subscription.start != "now" and not repeats', 'subscription.start != "now"'),)},
        ("reset_feed",),
    ),
    Mutation(
        "letter-lost",
        "an event that is given up leaves no dead letter",
        {"store/lua/settle_deliveries.lua": (("  redis.call('HSET', KEYS[5], ARGV[i], ARGV[i + 1])\n", ""),)},
        ("sink_down", "brisk"),
    ),
    Mutation(
        "redelivery-lost",
        "a redelivered dead letter is removed and not scheduled",
        {"store/lua/redeliver_letter.lua": (("redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])\n", ""),)},
        ("sink_down", "brisk", "redeliver"),
    ),
    Mutation(
        "gone-ignored",
        "a sink that answers 410 or 415 is asked again",
        {"delivery/sinks/webhook.py": (("    if status in _GONE:\n", "    if status in ():\n"),)},
        ("sink_gone",),
    ),
    Mutation(
        "release-ignored",
        "removals that are held stay so although they are released",
        {"store/commands.py": (("    RELEASE = (RELEASED, HELD, ", '    RELEASE = ("nothing", HELD, '),)},
        ("purge",),
    ),
    Mutation(
        "answer-not-awaited",
        "a process that stops releases a lease before it knows whether it has it (found by the simulation)",
        {
            "daemon/cluster/leases.py": (
                ("held = await asyncio.shield(acquiring)", "held = await acquiring"),
                ("            await finished(acquiring, within=RELEASE_SECONDS)\n", ""),
            )
        },
        ("stop", "busy"),
    ),
    Mutation(
        "orphan-lease-kept",
        "a process that stops while it trims an orphaned feed keeps the lease of the feed (found by the simulation)",
        {
            "daemon/retention_role.py": (
                (
                    "            await finished(retaining, within=RELEASE_SECONDS)\n",
                    "            await ended(retaining)\n",
                ),
            )
        },
        ("rename_feed", "sink_down"),
    ),
    Mutation(
        "own-settlements-missed",
        "a lease that ran out, was another's and came back counts as lost (found by the simulation)",
        {"store/lease.py": (("        if not self.held:  # another", "        if False:  # another"),)},
        ("store_restart", "partition", "slow"),
    ),
    Mutation(
        "reset-connection-used",
        "a connection that was reset while idle is used again (found by the simulation)",
        {"redis/single.py": (("(reader is not None and reader.exception() is not None) or ", ""),)},
        ("cut",),
    ),
    Mutation(
        "forgotten-in-part",
        "a feed that the operator deletes keeps what subscriptions have there",
        {"store/lua/forget_feed.lua": (("ipairs(KEYS) do", "ipairs({unpack(KEYS, 1, 5)}) do"),)},
        ("forget_feed",),
    ),
    Mutation(
        "commit-not-counted",
        "commits are missing in the metrics",
        {"telemetry/metrics.py": (("    metrics.commits[result].inc()\n", ""),)},
        ("kill",),
    ),
    Mutation(
        "delivery-not-counted",
        "events that were delivered are missing in the metrics",
        {"delivery/dispatcher.py": (("        series.attempted(STEPS[kind], events)\n", "        pass\n"),)},
        ("kill",),
    ),
    Mutation(
        "loss-unnoticed",
        "a process does not notice that the store has lost its settlements (found by the simulation)",
        {"store/consumer_state.py": (("self.lease.answered = serial", "self.lease.answered = 0"),)},
        ("store_loss", "failover", "sink_down"),
    ),
    Mutation(
        "backfill-spliced-early",
        "a chunk of a backfill is queued before what came before it was read",
        {
            "delivery/backfill.py": (
                (
                    "        if before < len(entries) or order.has_read_since(chunk.entry, reads):\n",
                    "        if True:\n",
                ),
            )
        },
        ("backfill", "busy", "few", "sink_down"),
    ),
    Mutation(
        "backfill-place-early",
        "what a backfill is read of is read before the place at which it is queued",
        {
            "store/lua/read_records.lua": (
                (
                    "return {generation, sequence, forms, field, run_id, entry, redis",
                    (
                        "local ms, n = string.match(entry, '^(%d+)-(%d+)$')\n"
                        "entry = string.format('%.0f-%s', tonumber(ms) + 3000, n)\n"
                        "return {generation, sequence, forms, field, run_id, entry, redis"
                    ),
                ),
            )
        },
        ("backfill", "busy", "few"),
    ),
    Mutation(
        "backfill-not-settled",
        "the position of a backfill is written before its records are delivered",
        {"delivery/backfill.py": (("            if chunk.open:\n                break\n", ""),)},
        ("backfill", "kill", "sink_down"),
    ),
    Mutation(
        "backfill-event-lost",
        "a backfilled event that waits for its next attempt does not keep its event",
        {
            "delivery/delivery_tracker.py": (
                ("            event = msgspec.Raw(waiting.item[1])\n", "            pass\n"),
            )
        },
        ("backfill", "sink_down"),
    ),
)


def main() -> int:
    """Play what the command line asks for; 1: a mistake was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", help="these alone")
    parser.add_argument("--most", type=int, default=60, help="seeds that are played at most for each")
    parser.add_argument("--jobs", type=int, default=1, help="mistakes side by side")
    parser.add_argument("--write", action="store_true", help="put what was found into the table of tests/README.md")
    asked = parser.parse_args()
    wanted = [one for one in MUTATIONS if not asked.names or one.name in asked.names]
    controls = [name for name in CONTROLS if not asked.names or name in asked.names]
    sys.stdout.write(_HEAD)
    missed = 0
    for name, row, found in _tried_all(wanted, controls, asked.most, asked.jobs):
        missed += not found
        sys.stdout.write(row)
        sys.stdout.flush()
        if asked.write:
            write_table("mutations", _with_row(table("mutations"), name, row))
    return 1 if missed else 0


def _tried_all(
    wanted: Sequence[Mutation], controls: Sequence[str], most: int, jobs: int
) -> Iterator[tuple[str, str, bool]]:
    """The name of each mistake that was tried, its row of the table, and whether it was found."""
    with ThreadPoolExecutor(jobs) as pool:
        playing = {pool.submit(tried, one, most): one for one in wanted}
        for done in as_completed(playing):
            one, caught = playing[done], done.result()
            yield one.name, _row(one.name, one.what, ", ".join(one.lean), caught), caught.problem is not None
    for name in controls:
        caught = control(name, most)
        yield name, _row(name, CONTROLS[name][0], "kill, lose_reply, cut", caught), caught.problem is not None


_HEAD: Final = "| mistake | what is wrong | seeds lean towards | seeds | found by |\n|---|---|---|---:|---|\n"


def _row(name: str, what: str, lean: str, caught: Caught) -> str:
    problem = caught.problem or "**not found**"
    return f"| `{name}` | {what} | {lean or '-'} | {caught.seeds} | {problem[:90].strip().replace('|', '/')} |\n"


def _with_row(written: str, name: str, row: str) -> str:
    """The table with this row in its place."""
    rows = {line.split("`")[1]: line + "\n" for line in written.splitlines() if line.startswith("| `")}
    rows[name] = row
    names = [*(one.name for one in MUTATIONS), *CONTROLS]
    return _HEAD + "".join(rows[one] for one in names if one in rows).rstrip()


def mutated(one: Mutation, directory: Path, *, whole: bool = True) -> None:
    """Make a copy of the package with the mistake in it, and the tests beside it.

    Args:
        one: the mistake.
        directory: where the copy goes.
        whole: whether all of the package is copied, or only the files that are changed.

    Raises:
        ValueError: a text to be replaced does not stand in its file exactly once.
    """
    if whole:
        shutil.copytree(_ROOT / "poller", directory / "poller", ignore=shutil.ignore_patterns("__pycache__"))
        (directory / "tests").symlink_to(_ROOT / "tests")
    for name, changes in one.changes.items():
        path = directory / "poller" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (_ROOT / "poller" / name).read_text()
        for before, after in changes:
            if text.count(before) != 1:
                raise ValueError(f"{one.name}: {before!r} stands {text.count(before)} times in {name}")
            text = text.replace(before, after)
        path.write_text(text)


def tried(one: Mutation, most: int) -> Caught:
    """Play seeds on a program with this mistake until one fails that holds without it."""
    began, first = time.monotonic(), 1
    with tempfile.TemporaryDirectory() as directory:
        mutated(one, Path(directory))
        while first <= most:
            problem, seed = _played(Path(directory), one, f"{first}..{most}")
            if problem is None or _played(_ROOT, one, f"{seed}..{seed}")[0] is None:
                return Caught(seed, problem, time.monotonic() - began)
            first = seed + 1  # it fails anyway
    return Caught(most, None, time.monotonic() - began)


def _played(directory: Path, one: Mutation, seeds: str) -> tuple[str | None, int]:
    """The first problem and its seed; None: all seeds held, and the last one."""
    command = [sys.executable, "-m", "tests.simulation", "--seeds", seeds, "--until-found", "--no-shrink"]
    done = subprocess.run(
        [*command, *(["--lean", *one.lean] if one.lean else [])],
        check=False,
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    if not any(" runs, " in line for line in lines):
        raise RuntimeError(f"{one.name}: {done.stderr[-2000:]}")
    failed = next((line for line in lines if line.startswith("seed ") and ": FAILED" in line), None)
    if failed is None:
        return None, int(seeds.rpartition("..")[2])
    return next(line.strip() for line in lines if line.startswith("  ")), int(failed.split()[1].rstrip(":"))


# The naive programs of the chaos suite: alone, under kills and lost replies.


def control(name: str, most: int) -> Caught:
    """Play a naive program until a judge finds something wrong with what it published or sent."""
    began = time.monotonic()
    for seed in range(1, most + 1):
        result = play_control(name, seed)
        wrong = [problem for problem in result.problems if problem.startswith(("stream: ", "sink "))]
        wrong = [problem for problem in wrong if "lost" in problem or "doubled" in problem or "order" in problem]
        if wrong:
            return Caught(seed, wrong[0], time.monotonic() - began)
    return Caught(most, None, time.monotonic() - began)


def play_control(name: str, seed: int, *, calmly: bool = False) -> Result:
    """Play a naive program; ``calmly``: without a fault."""
    plan = calm(seed, seconds=40.0)
    plan = msgspec.structs.replace(
        plan,
        changes=8.0,
        removals=0.0,
        subscriptions=tuple(
            msgspec.structs.replace(one, signed=False, mode="structured") for one in plan.subscriptions
        ),
    )
    with redirect_stderr(io.StringIO()):  # it says much
        return play(plan if calmly else _broken(plan, seed), program=CONTROLS[name][1])


def _broken(plan: Plan, seed: int) -> Plan:
    faults = []
    for number in range(12):
        at = 3.0 + 3.0 * number + (seed * 0.377 + number * 0.613) % 1.5
        kind = ("kill", "lose_reply", "cut")[(seed + number) % 3]
        faults.append(Deed(round(at, 3), kind, "daemon-1", "store", seconds=0.2))
    return msgspec.structs.replace(plan, faults=tuple(faults))


async def _naive(order: str, settings: Settings, clock: Clock) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(naive.run(settings, {}, order, clock))
        group.create_task(naive_dispatcher.run(settings))


def _program(order: str) -> Callable[..., Any]:
    async def run(
        settings: Settings, _environ: Mapping[str, str], *, stop: asyncio.Event, clock: Clock, **_more: object
    ) -> None:
        while not stop.is_set():
            working = asyncio.create_task(_naive(order, settings, clock))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
            if not stop.is_set():
                await clock.sleep(0.2)  # as a supervisor starts it again

    return run


CONTROLS: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "naive-events-first": ("a naive daemon that writes events first, with a naive dispatcher", _program("events")),
    "naive-snapshots-first": ("a naive daemon that writes snapshots first, likewise", _program("snapshots")),
}


if __name__ == "__main__":
    sys.exit(main())
