"""Laws of :mod:`poller.sandbox.faults.bodies`: each profile's bytes stand at the front of every page."""

from __future__ import annotations

from tests.sandbox.faults.stage import Law, Stage, shown, stage

ID = b"00000000-0000-4000-8000-0000000000"
RECORDS = {
    "id-number": b'{"id":1},{"id":"1"}',
    "id-nfc-nfd": b'{"id":"\xc3\xa9"},{"id":"e\xcc\x81"}',
    "id-empty": b'{"id":""}',
    "id-1mb": b'{"id":"' + b"i" * 1_048_576 + b'"}',
    "deep": b'{"id":"' + ID + b'01","name":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "big-integer": b'{"id":"' + ID + b'02","name":' + b"7" * 5000 + b"}",
    "nan": b'{"id":"' + ID + b'03","name":NaN}',
    "duplicate-keys": b'{"id":"' + ID + b'04","name":"a","name":"b"}',
    "not-utf-8": b'{"id":"' + ID + b'06","name":"\xff"}',
    "not-an-object": b'null,7,"x",["id"]',
    "no-id": b'{},{"id":null},{"id":true},{"id":{}}',
    "id-control": rb'{"id":"a\u0000b"},{"id":"a\u000ab"}',
    "lone-surrogate": b'{"id":"' + ID + b'05","name":"\\ud800"}',
}


def in_front(records: bytes) -> Law:
    async def law(api: Stage) -> None:
        async with stage() as plain:
            own, others = await three(api), await three(plain)
        front = b'{"results":[' + records
        assert own[0] == front + b"," + others[0].removeprefix(b'{"results":[')
        assert own[1] == front + others[1].removeprefix(b'{"results":[')
        assert own[2] == others[2]

    return law


LAWS = {name: in_front(records) for name, records in RECORDS.items()}


async def test_each_does_what_its_line_says() -> None:
    """A profile's records come first in a page, also in an empty one; all else is as it was."""
    await shown(LAWS)


async def three(api: Stage) -> list[bytes]:
    """A full page, an empty one, a single record. The tokens of two equal histories are equal."""
    path = "/employmentUnavailabilities"
    return [(await api.get()).content, (await api.get(path)).content, (await api.get("/contractTypes/c1")).content]
