"""Simulated runs by seed: ``python -m tests.simulation --seed 7``.

A run that fails prints its seed, is shrunk to the fewest faults and actions that still fail, and tells its story.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import msgspec

from tests.simulation.plan import Plan, brief, decode, drawn, encode, lasting, resting
from tests.simulation.shrink import shrunk
from tests.simulation.story import told
from tests.simulation.world import Result, play

CORPUS = Path(__file__).with_name("corpus.jsonl")


class Found(msgspec.Struct, frozen=True):
    """A line of the corpus: a plan that failed once, made as small as possible, and what it found."""

    found: str
    plan: Plan


def corpus() -> list[Found]:
    """The plans that failed once."""
    return [msgspec.json.decode(line, type=Found) for line in CORPUS.read_bytes().splitlines()]


def _add(plan: Plan, found: str) -> None:
    """Add a plan to the corpus; what is as by default is left out."""
    with CORPUS.open("ab") as file:
        file.write(msgspec.json.encode(Found(found, plan)) + b"\n")


def main() -> int:
    """Play what the command line asks for; 1: something failed."""
    asked = _parser().parse_args()
    if asked.speed:
        return _speed()
    plans = _plans(asked)
    began = time.monotonic()
    runs, simulated = 0, 0.0
    failed: list[Result] = []
    for result in _played(plans, partial(play, traces=not asked.in_all), asked.jobs):
        runs, simulated = runs + 1, simulated + result.seconds
        if runs % _TOLD == 0:
            sys.stderr.write(f"{runs} runs, {simulated / 3600:.2f} h, {len(failed)} failed\n")
        if asked.plan is not None or asked.seed is not None or asked.verbose:
            sys.stdout.write(_line(result) + "\n")
        if result.problems:
            failed.append(result)
            sys.stdout.write(_failure(result) + "\n")
            sys.stdout.flush()
            if asked.until_found:
                break
    elapsed = time.monotonic() - began
    sys.stdout.write(
        f"{runs} runs, {simulated / 3600:.2f} h simulated in {elapsed:.0f} s ({simulated / max(elapsed, 0.01):.0f} "
        f"times as fast), {len(failed)} failed: {' '.join(str(one.plan.seed) for one in failed)}\n"
    )
    if failed and asked.shrink:
        _explain(failed[0], asked.keep)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed")
    parser.add_argument("--seeds", help="play these seeds, FROM..TO, the last one included")
    parser.add_argument("--corpus", action="store_true", help="play the plans that failed once")
    parser.add_argument("--until-found", action="store_true", help="go on with further seeds until one fails")
    parser.add_argument("--hours", type=float, help="let each run last so many hours")
    parser.add_argument("--brief", action="store_true", help="short and small, as the quick suite plays them")
    parser.add_argument(
        "--in-all",
        type=float,
        metavar="HOURS",
        help="as --brief, and then each world goes on at rest until the seeds have lasted so many hours in all",
    )
    parser.add_argument("--lean", nargs="*", default=(), help="the kinds of faults and actions that are on")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--plan", type=Path, help="play this plan, as a failure has written it")
    parser.add_argument("--add", metavar="WHAT", help="add the plan of --plan to the corpus: WHAT it has found")
    parser.add_argument("--keep", type=Path, default=Path("simulation-failed"), help="where a failure is written")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="do not look for a smaller plan")
    parser.add_argument("--speed", action="store_true", help="how fast daemons at rest are played")
    parser.add_argument("--verbose", action="store_true", help="a line for each run")
    return parser


def _plans(asked: argparse.Namespace) -> Iterable[Plan]:
    if asked.corpus:
        return [one.plan for one in corpus()]
    if asked.plan is None:
        return map(_made(asked), _seeds(asked))
    plan = decode(asked.plan.read_bytes())
    if asked.add:
        _add(plan, asked.add)
    return [plan]


def _made(asked: argparse.Namespace) -> Callable[[int], Plan]:
    """What makes the plan of a seed."""
    if asked.in_all:
        first, _, last = (asked.seeds or "1..1").partition("..")
        return partial(lasting, seconds=asked.in_all * 3600 / (int(last) - int(first) + 1))
    return brief if asked.brief else partial(drawn, hours=asked.hours, lean=asked.lean)


def _seeds(asked: argparse.Namespace) -> Iterable[int]:
    if asked.seeds:
        first, _, last = asked.seeds.partition("..")
        return range(int(first), int(last) + 1)
    first = 1 if asked.seed is None else asked.seed
    return count(first) if asked.until_found else [first]


def _played(plans: Iterable[Plan], how: Play, jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from map(how, plans)
        return
    with ProcessPoolExecutor(jobs) as pool:
        waiting, coming = [], iter(plans)
        for plan in coming:
            waiting.append(pool.submit(how, plan))
            if len(waiting) > 2 * jobs:
                yield waiting.pop(0).result()
        for one in waiting:
            yield one.result()


def _speed() -> int:
    """Play two daemons, one feed and one subscription at rest; 1: less than a hundred times as fast as real time."""
    result = play(resting(1.0))  # what is read and compiled once
    plan, spent = resting(_RESTING), []
    for _ in range(_AGAIN):
        began = time.process_time()
        result = play(plan)
        spent.append(time.process_time() - began)
    ratio = result.seconds / min(spent)
    sys.stdout.write(
        f"at rest: {result.seconds:.0f} s simulated in {min(spent):.2f} s of CPU, {ratio:.0f} times as fast as real "
        f"time (the quickest of {_AGAIN} runs; the slowest: {result.seconds / max(spent):.0f})\n"
    )
    return 0 if ratio >= _LEAST and not result.problems else 1


def _line(result: Result) -> str:
    plan = result.plan
    return (
        f"seed {plan.seed}: {'FAILED' if result.problems else 'held'}, {result.seconds:.0f} s, "
        f"{len(plan.daemons)} daemons, {len(plan.feeds)} feeds, {len(plan.subscriptions)} subscriptions, "
        f"{len(plan.faults)} faults, {len(plan.actions)} actions, {result.events} events, {result.requests} requests, "
        f"trace {result.digest}"
    )


def _failure(result: Result) -> str:
    return "\n".join((_line(result), *(f"  {line}" for line in result.problems)))


def _explain(result: Result, directory: Path) -> None:
    """Shrink the plan of a failed run, and write down the smaller plan, its story and its trace."""
    kinds = {_kind(problem) for problem in result.problems}
    plan = shrunk(result.plan, partial(_fails_alike, kinds))
    least = play(plan, keep_trace=True)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "plan.json").write_bytes(encode(plan))
    (directory / "trace").write_text("\n".join(least.trace))
    (directory / "story").write_text("\n".join(least.story))
    deeds = "\n".join(f"  {deed}" for deed in (*plan.faults, *plan.actions))
    sys.stdout.write(
        f"\nseed {plan.seed}, shrunk from {len(result.plan.faults)} faults and {len(result.plan.actions)} actions to\n"
        f"{deeds or '  none'}\n{_failure(least)}\n\n{told(least.story)}\n\n"
        f"again: python -m tests.simulation --plan {directory / 'plan.json'}\n"
    )


def _kind(problem: str) -> str:
    """What a problem is about, without its figures: a smaller plan has to fail in the same way."""
    return "".join(one for one in problem.split("\n", maxsplit=1)[0][:_KIND] if not one.isdigit())


def _fails_alike(kinds: set[str], plan: Plan) -> bool:
    return any(_kind(problem)[:_ALIKE] in {kind[:_ALIKE] for kind in kinds} for problem in play(plan).problems)


_RESTING = 300.0  # seconds
_AGAIN = 5
_LEAST = 100
_TOLD = 100  # runs
_KIND = 80
_ALIKE = 24

Play = Callable[[Plan], Result]

if __name__ == "__main__":
    sys.exit(main())
