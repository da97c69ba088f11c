"""Laws of ``/feeds``: the status that the command line shows, and commands for the next round."""

from __future__ import annotations

import msgspec

from poller.control.factories import keys_of
from poller.control.status import FeedStatus, feed_statuses
from tests.web.served import FEEDS, NOW, Served


async def read(given: Served, feed: str, **state: str) -> None:
    """Write the state of a feed that has been read."""
    values: dict[str, str] = {"generation": "g", "sequence": "7", **state}
    for name, value in values.items():
        await given.store.hset(keys_of(given.settings, feed).state, name, value)


async def test_each_feed_is_told_as_by_the_command_line(given: Served) -> None:
    """The list and the single feed have the keys and values of ``poller status --json``."""
    await read(given, FEEDS[0])
    told = await feed_statuses(given.store, given.settings, now=NOW)
    expected = msgspec.json.decode(msgspec.json.encode(told))
    status, _, found = await given.ask("/feeds", token=None)
    assert (status, found) == (200, expected)
    assert found[0]["events"] == 7
    assert (await given.ask(f"/feeds/{FEEDS[1]}"))[2] == expected[1]
    assert set(found[0]) == set(FeedStatus.__struct_fields__)


async def test_a_long_list_comes_in_parts(given: Served) -> None:
    """Each page of the list links to the next, and the last has no link; an invalid limit gets 400."""
    _, headers, first = await given.ask("/feeds?limit=1")
    assert headers["link"] == '</feeds?limit=1&after=acme%2FcontractTypes>; rel="next"'
    _, headers, second = await given.ask("/feeds?limit=1&after=acme%2FcontractTypes")
    assert "link" not in headers
    assert [one["feed"] for one in first + second] == list(FEEDS)
    for limit in ("0", "1001", "x", "-1", "", "٣", "00000000199999", "0" * 9 + "1" * 5000):
        status, _, told = await given.ask(f"/feeds?limit={limit}")
        assert (status, told["errors"][0]["key"]) == (400, "limit")


async def test_orders_are_left_for_the_next_round(given: Served) -> None:
    """Each command sets its field of the feed's state for the next round; an inapplicable one gets 409."""
    state = keys_of(given.settings, FEEDS[0]).state
    for order in ("resync", "resync?anew=true", "release"):
        status, _, told = await given.ask(f"/feeds/{FEEDS[0]}/{order}", "POST")
        assert (status, told["title"]) == (409, "Conflict")
    await read(given, FEEDS[0], held="1")
    for order, field in (("resync", b"resync"), ("resync?anew=true", b"anew"), ("release", b"released")):
        before = set(await given.store.hkeys(state))
        status, _, told = await given.ask(f"/feeds/{FEEDS[0]}/{order}", "POST")
        assert (status, told["feed"], told["outcome"]) == (202, FEEDS[0], "no daemon")
        assert set(await given.store.hkeys(state)) - before == {field}
    assert (await given.ask(f"/feeds/{FEEDS[0]}/resync?anew=1", "POST"))[0] == 400


async def test_a_feed_that_there_is_not(given: Served) -> None:
    """An unknown feed gets 404 with the known feeds."""
    for path, method in (("/feeds/acme/none", "GET"), ("/feeds/acme/none/resync", "POST")):
        status, _, told = await given.ask(path, method)
        assert status == 404
        assert FEEDS[0] in told["detail"]


async def test_a_feed_is_paused_and_resumed(given: Served) -> None:
    """A feed is paused with a reason that its status shows; pausing or resuming twice gets 200."""
    path = f"/feeds/{FEEDS[0]}"
    status, _, told = await given.ask(f"{path}/pause", "POST", json={"reason": "moving house"})
    assert (status, told["outcome"]) == (202, "no daemon")
    shown = (await given.ask(path))[2]
    assert (shown["state"], shown["paused_reason"]) == ("paused", "moving house")
    status, _, told = await given.ask(f"{path}/pause", "POST")
    assert (status, told["before"]["reason"]) == (200, "moving house")
    assert (await given.ask(f"{path}/resume", "POST"))[0] == 202
    assert (await given.ask(path))[2]["state"] != "paused"
    assert (await given.ask(f"{path}/resume", "POST"))[0] == 200
    status, _, told = await given.ask(f"{path}/pause", "POST", json={"reson": "a slip"})
    assert (status, told["errors"]) == (422, [{"key": "reson", "expected": "unknown key; known are reason"}])


async def test_an_order_takes_no_body(given: Served) -> None:
    """A command with a body is refused, because the body would be ignored."""
    await read(given, FEEDS[0])
    status, _, told = await given.ask(f"/feeds/{FEEDS[0]}/resync", "POST", json={"anew": True})
    assert (status, "?anew=true" in told["detail"]) == (400, True)
