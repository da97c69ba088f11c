"""What holds for all tests: which of them run, on which store, for how long, and what the summary says.

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

# Each worker imports hundreds of test modules, and tests start hundreds of processes. Where the environment says that
# Python is to keep no bytecode, each of them would compile all of it again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("thorough", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=25)
settings.register_profile(
    "long", settings.get_profile("thorough"), derandomize=False, max_examples=2000, stateful_step_count=60
)
settings.load_profile("quick")

_EACH = {"single_kind": SINGLE, "store_kind": KINDS, "client_kind": KINDS, "several_kind": SEVERAL}
"""On which a test runs that does not go by the chosen one alone, unless one is chosen.

By Sentinels the quick suite has the tests that are about them; all others find one server there, as without them.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="run the tests that take long as well")
    parser.addoption("--store", choices=KINDS, help="run on this kind of store alone")
    parser.addoption("--resp", choices=("2", "3"), help="speak this version of RESP")


def pytest_configure(config: pytest.Config) -> None:
    """A thorough run tries more examples of each property."""
    config.addinivalue_line("markers", "thorough: takes long; runs with --thorough, or if it is named by its id")
    if config.getoption("--thorough"):
        settings.load_profile("thorough")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have the workers of a whole first run compile the test modules together: each begins with a share of its own.

    Otherwise all compile the same module at the same time, for all collect in the same order.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception), warnings.catch_warnings():  # what fails here fails again, and is told, in collection
            warnings.simplefilter("error")
            importlib.import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, unless it is asked for."""
    if config.getoption("--thorough") or any("::" in argument for argument in config.args):
        return
    long = [item for item in items if item.get_closest_marker("thorough")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


def pytest_collection_finish() -> None:
    """Keep what was collected out of each garbage collection: it stays until the end, and is most of what there is."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each reason to skip, such as a missing tool, however many tests it keeps from running."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"SKIPPED [{count}] {reason}", yellow=True)


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> object:
    """A test that hangs fails, with the stacks of its threads, instead of holding up the run; later under load."""
    scaled = settings._replace(timeout=settings.timeout * strain())
    set_timer = pytest_timeout.pytest_timeout_set_timer(item, scaled)
    if scaled.timeout > 0 and scaled.method == "signal":
        # An event loop swallows what is raised in a callback, so the alarm goes off until one gets through.
        signal.setitimer(signal.ITIMER_REAL, scaled.timeout, max(scaled.timeout / 10, 3.0))
    return set_timer


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[None]:
    """The alarm has done its work once a test has failed; in the middle of the report it would end the whole run."""
    if call.excinfo is not None and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What ``-n auto`` means: more workers than CPUs, for the long tests wait for processes and sockets.

    Not more than eight: each collects all tests and starts its own servers, which then takes longer than the tests do.
    """
    return min(max(2, len(os.sched_getaffinity(0)) * 3), 8)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each kind of store for the tests that ask for it; the chosen one alone, if there is one."""
    one: Store | None = metafunc.config.getoption("--store")
    for name, kinds in _EACH.items():
        if name in metafunc.fixturenames:
            marks = {"sentinel": pytest.mark.thorough} if kinds is not SEVERAL else {}
            cases = [pytest.param(kind, marks=marks.get(kind, ())) for kind in kinds]
            metafunc.parametrize(name, cases if one is None else (one,))


@pytest.fixture(scope="session", autouse=True)
def forked() -> Iterator[None]:
    """Processes of the program are forked from one that has imported it."""
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
    """For a test that is about one server alone."""
    only_one_server(chosen)


@pytest.fixture
def server(single_kind: Store, stores: Stores) -> str:
    """The URL of a real, empty server: Valkey, then Redis. Skips where another kind of store is chosen."""
    only_one_server(single_kind)
    return stores.emptied(single_kind)


@pytest.fixture
def any_store(store_kind: Store, stores: Stores) -> str:
    """The URL of an empty store, of each kind."""
    return stores.emptied(store_kind)


@pytest.fixture
async def fake() -> AsyncIterator[Redis]:
    """An empty fakeredis."""
    client = FakeAsyncRedis(server=FakeServer(version=(7,)))
    yield client
    await client.aclose()


@pytest.fixture
async def store_client(client_kind: str, stores: Stores) -> AsyncIterator[Redis]:
    """A client of an empty store, ready for scripts, of each kind."""
    client = commands(stores.emptied(cast("Store", client_kind)))
    yield client
    await client.aclose()


@pytest.fixture
async def client() -> AsyncIterator[FakeAsyncRedis]:
    """A fakeredis of its own."""
    async with FakeAsyncRedis() as fake:
        yield fake
