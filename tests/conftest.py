"""Settings of all tests: selection, stores, time limits, and the summary.

``pytest`` runs the quick suite: every module, and one test of each kind of fault. ``pytest --thorough`` runs all tests,
with more examples for hypothesis.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import cast

import pytest
import pytest_timeout
from fakeredis import FakeAsyncRedis, FakeServer
from hypothesis import HealthCheck, settings
from redis.asyncio import Redis

from poller.redis.client import commands
from tests.harness.forks import forking
from tests.harness.waiting import strain
from tests.stores import KINDS, SEVERAL, SINGLE, Store, Stores, only_one_server

# Each worker imports hundreds of test modules, and tests start hundreds of processes. Without bytecode files each of
# them would compile everything again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What a shell starts in the background ignores SIGINT, and so would the programs that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("thorough", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=15, stateful_step_count=20)
settings.register_profile(
    "long", settings.get_profile("thorough"), derandomize=False, max_examples=2000, stateful_step_count=60
)
settings.load_profile("quick")

_EACH = {"single_kind": SINGLE, "store_kind": KINDS, "client_kind": KINDS, "several_kind": SEVERAL}
"""The kinds of store for each fixture, unless one kind is chosen.

The quick suite uses Sentinels only in tests about them; for other tests a store behind Sentinels is one server.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="run the tests that take long as well")
    parser.addoption("--store", choices=KINDS, help="run on this kind of store alone")
    parser.addoption("--resp", choices=("2", "3"), help="speak this version of RESP")


def pytest_configure(config: pytest.Config) -> None:
    """Use more examples of each property in a thorough run."""
    config.addinivalue_line("markers", "thorough: takes long; runs with --thorough, or if it is named by its id")
    if config.getoption("--thorough"):
        settings.load_profile("thorough")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let the workers of a complete first run share the compilation of the test modules.

    Otherwise all of them would compile the same module at the same time, because they collect in the same order.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception), warnings.catch_warnings():  # an error here is reported again by the collection
            warnings.simplefilter("error")
            importlib.import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests, unless they are requested; run the tests of whole programs, beside this file, first.

    They take longest. Were they the last, one worker would still run them while the others have finished.
    """
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)
    if config.getoption("--thorough") or any("::" in argument for argument in config.args):
        return
    long = [item for item in items if item.get_closest_marker("thorough")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


def pytest_collection_finish() -> None:
    """Exclude the collected items from garbage collection: they are most of the objects and stay until the end."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each reason to skip, such as a missing tool, with the number of tests."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"SKIPPED [{count}] {reason}", yellow=True)


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> object:
    """Make a test that hangs fail with the stacks of its threads, later under load."""
    scaled = settings._replace(timeout=settings.timeout * strain())
    set_timer = pytest_timeout.pytest_timeout_set_timer(item, scaled)
    if scaled.timeout > 0 and scaled.method == "signal":
        # An event loop swallows an exception in a callback, so the alarm is repeated until one gets through.
        signal.setitimer(signal.ITIMER_REAL, scaled.timeout, max(scaled.timeout / 10, 3.0))
    return set_timer


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[None]:
    """Cancel the alarm once a test has failed; during the report it would end the whole run."""
    if call.excinfo is not None and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """The meaning of ``-n auto``: more workers than CPUs, because long tests wait for processes and sockets.

    At most eight: each worker collects all tests and starts its own servers, which would take longer than the tests.
    """
    return min(max(2, len(os.sched_getaffinity(0)) * 3), 8)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each kind of store that its fixture names, or on the chosen one only."""
    one: Store | None = metafunc.config.getoption("--store")
    for name, kinds in _EACH.items():
        if name in metafunc.fixturenames:
            marks = {"sentinel": pytest.mark.thorough} if kinds is not SEVERAL else {}
            cases = [pytest.param(kind, marks=marks.get(kind, ())) for kind in kinds]
            metafunc.parametrize(name, cases if one is None else (one,))


@pytest.fixture(scope="session", autouse=True)
def forked() -> Iterator[None]:
    """Fork processes of the program from one that has imported it."""
    with forking():
        yield


@pytest.fixture(scope="session")
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """All stores of the run."""
    with ExitStack() as stack:
        yield Stores(stack, tmp_path_factory.mktemp, request.config.getoption("--resp"))


@pytest.fixture(scope="session")
def chosen(request: pytest.FixtureRequest) -> Store:
    """The kind of store on which most tests run."""
    return request.config.getoption("--store") or "valkey"


@pytest.fixture
def store_url(stores: Stores, chosen: Store) -> str:
    """The URL of an empty store."""
    return stores.emptied(chosen)


@pytest.fixture
def one_server(chosen: Store) -> None:
    """Skip a test about a single server on other kinds of store."""
    only_one_server(chosen)


@pytest.fixture
def server(single_kind: Store, stores: Stores) -> str:
    """The URL of a real, empty server: Valkey, then Redis. Skips if another kind of store is chosen."""
    only_one_server(single_kind)
    return stores.emptied(single_kind)


@pytest.fixture
def any_store(store_kind: Store, stores: Stores) -> str:
    """The URL of an empty store, for each kind."""
    return stores.emptied(store_kind)


@pytest.fixture
async def fake() -> AsyncIterator[Redis]:
    """An empty fakeredis, version 7."""
    client = FakeAsyncRedis(server=FakeServer(version=(7,)))
    yield client
    await client.aclose()


@pytest.fixture
async def store_client(client_kind: str, stores: Stores) -> AsyncIterator[Redis]:
    """A client of an empty store, ready for scripts, for each kind."""
    client = commands(stores.emptied(cast("Store", client_kind)))
    yield client
    await client.aclose()


@pytest.fixture
async def client() -> AsyncIterator[FakeAsyncRedis]:
    """A separate fakeredis."""
    async with FakeAsyncRedis() as fake:
        yield fake
