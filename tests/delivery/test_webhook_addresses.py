"""Laws of :mod:`poller.delivery.sinks.connection`: which addresses a sink's name may resolve to."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from poller.delivery.sinks.base import Failure
from poller.delivery.sinks.connection import GuardedResolver
from poller.errors import AddressRefused
from poller.http.ssrf import AddressPolicy, SharedLookup, system_lookup
from tests.delivery.sinks import TYPE, posted, sink_of
from tests.harness.waiting import until
from tests.receiver import receiving

NONE = AddressPolicy()
SPELLINGS = ["127.0.0.1", "127.1", "127.0.1", "0x7f.1", "0x7f000001", "2130706433", "017700000001", "0177.0.0.1",
             "127.0.0.1.", "127%2e0.0.1", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::127.0.0.1]",  # noqa: S104 -- not bound
             "localhost", "a.localhost", "user:hunter2@127.0.0.1", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"]  # fmt: skip


class Names:
    """A resolver with scripted answers, which repeats the last one."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.mark.parametrize("host", SPELLINGS)
async def test_this_machine_is_not_reached_in_any_spelling(host: str) -> None:
    """Every spelling of a loopback address is refused before a look-up or a connection."""
    names = Names(["127.0.0.1"])
    async with receiving() as receiver:
        port = receiver.url.rpartition(":")[2]
        outcome = await posted(f"https://{host}:{port}/", allowed=NONE, lookup=names)
        assert outcome.failure is Failure.ADDRESS
        assert "hunter2" not in outcome.error
        assert receiver.connections == 0
    assert names.asked == []


@pytest.mark.parametrize(
    "found", [["127.0.0.1"], ["10.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["2606:4700::1", "fe80::1%lo"], ["::ffff:8.8.8.8"]]
)
async def test_a_name_that_leads_inwards_is_refused(found: list[str]) -> None:
    """A name that resolves to a private address is refused, and no connection is made."""
    async with receiving() as receiver:
        url = f"https://sink.example:{receiver.url.rpartition(':')[2]}/"
        outcome = await posted(url, allowed=NONE, lookup=Names(found))
        assert receiver.connections == 0
    assert outcome.failure is Failure.ADDRESS
    assert outcome.error.startswith("the address is refused: sink.example leads to ")


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """A name is resolved once per connection, so the address that was checked is the address connected to."""
    names = Names(["127.0.0.2"], ["127.0.0.1"])
    allowed = AddressPolicy.of(("127.0.0.2", "sink.example"))
    async with receiving() as inside, receiving(host="127.0.0.2", port=int(inside.url.rpartition(":")[2])) as checked:
        url = f"http://sink.example:{inside.url.rpartition(':')[2]}/"
        async with sink_of(url, allowed=allowed, lookup=names) as sink:
            assert (await sink.post((TYPE,), b"{}")).is_delivered
        assert (checked.count, inside.connections) == (1, 0)
        assert checked.requests[0].header("host") == url.removeprefix("http://").rstrip("/")
    assert names.asked == ["sink.example"]


async def test_a_name_is_checked_for_each_look_up() -> None:
    """Each look-up of a name is checked, so a changed address counts."""
    guard = GuardedResolver(NONE, Names(["8.8.8.8"], ["127.0.0.1"], ["8.8.8.8", "2001:4860:4860::8888"]))
    assert [found["host"] for found in await guard.resolve("sink.example", 443)] == ["8.8.8.8"]
    with pytest.raises(AddressRefused, match=r"^sink\.example leads to 127\.0\.0\.1, a loopback address$"):
        await guard.resolve("sink.example", 443)
    found = await guard.resolve("sink.example", 443)
    assert [(one["host"], one["port"], one["family"]) for one in found] == [
        ("8.8.8.8", 443, socket.AF_INET),
        ("2001:4860:4860::8888", 443, socket.AF_INET6),
    ]


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["8.8.8.1", "8.8.8.2", "8.8.8.3"], [["8.8.8.1", "8.8.8.2"], ["8.8.8.3", "8.8.8.2"]]),
        (["8.8.8.1", "2001:4860::1", "8.8.8.2"], [["8.8.8.1", "2001:4860::1"], ["8.8.8.2", "2001:4860::1"]]),
        (["8.8.8.1", "2001:4860::1"], [["8.8.8.1", "2001:4860::1"]] * 2),
    ],
)
async def test_of_many_addresses_two_are_tried_at_a_time(addresses: list[str], expected: list[list[str]]) -> None:
    """A name with many addresses takes no more descriptors than one with two; all of them come in turn."""
    guard = GuardedResolver(NONE, Names(*[addresses] * 3))
    found = [[one["host"] for one in await guard.resolve("sink.example", 443)] for _ in expected]
    assert found == expected


async def test_a_name_without_an_address_is_a_failure_of_names() -> None:
    """An unknown name, or one without an address, is a DNS failure."""
    for lookup in (Names([]), None):
        outcome = await posted("https://sink.invalid/hooks", allowed=NONE, lookup=lookup)
        assert outcome.failure is Failure.DNS
        assert outcome.error.startswith("sink.invalid cannot be resolved: ")


async def test_a_name_that_nobody_answers_for_takes_no_longer_than_allowed() -> None:
    """A look-up that hangs ends with the attempt's time limit."""

    async def never(_: str) -> Sequence[str]:
        await asyncio.Event().wait()
        raise AssertionError

    outcome = await posted("https://sink.example/", allowed=NONE, lookup=never, seconds=0.1)
    assert outcome.failure is Failure.TIMEOUT


async def test_the_systems_look_up_gives_numbers() -> None:
    """The system's look-up returns addresses, and raises OSError for an unknown or invalid name."""
    found = await asyncio.gather(*(system_lookup("localhost") for _ in range(20)))
    assert all(set(addresses) <= {"127.0.0.1", "::1"} and addresses for addresses in found)
    for name in ("sink.invalid", "a" * 300, "a..b", "\udcff"):
        with pytest.raises(OSError, match=r"."):
            await system_lookup(name)


async def test_a_machine_without_a_further_thread_fails_the_attempt() -> None:
    """Where no thread can be started for a look-up, the attempt fails with the reason, as any other one."""
    threading.stack_size(2**46)  # more than there are addresses for
    try:
        outcome = await posted("http://localhost:1/", allowed=AddressPolicy(private=True))
    finally:
        threading.stack_size(0)
    assert outcome.failure is Failure.DNS
    assert "can start no further thread" in outcome.error


async def test_a_shared_look_up_asks_once_for_all_who_wait() -> None:
    """Concurrent callers share one look-up of a name; one that gives up takes it from no other."""
    lookup = SharedLookup()
    waiting = [asyncio.create_task(lookup("localhost")) for _ in range(5)]
    await asyncio.sleep(0)
    assert sum(thread.name == "look-up of localhost" for thread in threading.enumerate()) <= 1
    waiting[0].cancel()
    assert len({tuple(found) for found in await asyncio.gather(*waiting[1:])}) == 1
    for _ in range(2):  # what failed is asked for again
        with pytest.raises(OSError, match=r"."):
            await lookup("sink.invalid")


async def test_the_failure_of_a_look_up_that_was_given_up_is_not_logged() -> None:
    """Nothing is reported of a look-up that fails after its last caller was cancelled."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda *told: reported.append(told))
    lookup = SharedLookup()
    waiting = asyncio.create_task(lookup("given..up"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    await until(lookup._under_way["given..up"].done, "the look-up to end")
    del waiting, lookup  # the last that know of it
    gc.collect()
    await asyncio.sleep(0)
    assert not reported


async def test_the_systems_look_up_is_what_a_sink_uses() -> None:
    """Without its own look-up a sink uses the system's."""
    async with receiving() as receiver:
        url = f"http://localhost:{receiver.url.rpartition(':')[2]}/"
        assert (await posted(url, allowed=AddressPolicy.of(("localhost",)))).is_delivered
