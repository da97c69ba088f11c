"""Laws of :mod:`poller.delivery.projection`: what is sent of an event, and what is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # ships no types
from standardwebhooks import Webhook

from poller.changes.canonical import canonical
from poller.changes.diff import Change, ChangeKind, Snapshot, compare
from poller.changes.events import Cause, EventFrame, event_schema
from poller.changes.records import Record
from poller.delivery.cloudevent import Event, Mode, RequestForm, envelope_of
from poller.delivery.delivery_tracker import DeliveryTracker
from poller.delivery.projection import Projection, projection_of, segments_of, touches
from poller.delivery.signing import Signer, new_secret
from poller.store.stream import EntryId
from tests.changes.samples import CHANCE, FEW, KEYS, MANY, OBJECTS, TREES, opinion, spelled
from tests.delivery.events import RECORDED, SOURCE
from tests.delivery.events import spelled as foreign
from tests.delivery.scene import subscription
from tests.harness.json_values import differing

STEM: Final = "org.example.api.contractType"
NOW: Final = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
_FRAME: Final = EventFrame(feed="acme/a", generation="g1", source=SOURCE, type_stem=STEM, cause=Cause.DELTA)
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|[a-z]+|[{}\[\],:]')

POINTERS: Final = st.lists(
    st.lists(st.sampled_from(["a", "b", "é", "a/b", "~", "0"]) | KEYS, min_size=1, max_size=3).map(
        lambda keys: "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)
    ),
    min_size=1,
    max_size=3,
)
RECORDS: Final = st.builds(
    lambda fields, nested: {**fields, **nested, "id": "K"},
    OBJECTS,
    st.dictionaries(st.sampled_from(["a", "b"]), OBJECTS | st.lists(TREES, max_size=2), max_size=2),
)


def event(raw: bytes | None, previous: bytes | None = None, changed: tuple[str, ...] = ()) -> Event:
    """An event as this program writes it."""
    kind = ChangeKind.REMOVED if raw is None else ChangeKind.MODIFIED if changed else ChangeKind.CREATED
    form = b"" if raw is None else canonical(raw)
    change = Change(kind, "k", "K", "2026-01-01T00:00:00Z", raw, form, previous, changed, 2)
    written = _FRAME.encode(change, event_id=_FRAME.event_id(change), sequence=7, recorded=RECORDED)
    return envelope_of(written), written


def modified(old: bytes, new: bytes) -> Event | None:
    """The event of a change that the program finds; None: it finds none."""
    found = compare(Record(key="k", subject="K", modified=None, raw=new, qualification=None), Snapshot(1, 1, old))
    return None if found is None or not found.changed else event(new, old, found.changed)


def data_of(sent: Event | None) -> Any:
    assert sent is not None
    return json.loads(sent[1])["data"]


def raw_record(sent: Event | None, name: str = "record") -> bytes:
    """The bytes of a record in an event, found by the standard library and a count of brackets."""
    assert sent is not None
    start = sent[1].index(b'"%b":{' % name.encode(), sent[1].index(b'"data":{')) + len(name) + 3
    text = sent[1][start:].decode()
    return text[: json.JSONDecoder().raw_decode(text)[1]].encode()


def is_subsequence(part: bytes, whole: bytes) -> bool:
    tokens: Iterator[str] = iter(_TOKEN.findall(whole.decode()))
    return all(any(one == other for other in tokens) for one in _TOKEN.findall(part.decode()))


def expected(tree: Any, pointers: Sequence[list[str]], *, pick: bool) -> Any:
    """What is left of a record: a plain second implementation, on values; ... : nothing."""
    if [] in pointers:
        return tree if pick else ...
    if not pointers:
        return ... if pick else tree
    if not isinstance(tree, dict):
        return ... if pick or isinstance(tree, list) else tree
    below = {key: [one[1:] for one in pointers if one[0] == key] for key in tree}
    left = {key: expected(value, below[key], pick=pick) for key, value in tree.items()}
    left = {key: value for key, value in left.items() if value is not ...}
    return left if left or not pick else ...


@MANY
@given(RECORDS, POINTERS, st.booleans(), CHANCE)
@example({"id": "K", "a": [{"b": 1}], "b": {"a": [1]}}, ["/a/0/b", "/b/a/0"], False, Random(1))
@example({"id": "K", "a": [{"b": 1}], "b": {"a": [1]}}, ["/a/0/b", "/b/a/0"], True, Random(1))
def test_what_stays_has_the_bytes_that_were_received(
    record: dict[str, Any], pointers: list[str], pick: bool, chance: Random
) -> None:
    """Of a record exactly what the settings say is left, token by token as received, in the same order."""
    raw = spelled(record, chance).strip()
    made = projection_of(pick=pointers) if pick else projection_of(drop=pointers)
    left = raw_record(made.of(event(raw)))
    paths = [segments_of(one) for one in pointers] + ([["id"]] if pick else [])
    wanted = expected(json.loads(raw, parse_int=str, parse_float=str), paths, pick=pick)
    assert json.loads(left, parse_int=str, parse_float=str) == ({} if wanted is ... else wanted)
    assert is_subsequence(left, raw)


def test_large_numbers_escapes_and_the_order_of_keys_stay() -> None:
    """Integers of thirty digits, spellings of floats, escapes in keys, and the order of keys are those received."""
    raw = rb'{"z":1.50,"\u0061":{"n":123456789012345678901234567890,"x":1},"id":"K","t":"\u00e9\ud83d\ude00"}'
    left = rb'{"z":1.50,"\u0061":{"n":123456789012345678901234567890},"id":"K","t":"\u00e9\ud83d\ude00"}'
    assert raw_record(projection_of(drop=["/a/x"]).of(event(raw))) == left
    assert raw_record(projection_of(pick=["/a/n", "/z", "/t"]).of(event(raw))) == left


@FEW
@given(RECORDS, RECORDS, POINTERS, POINTERS, CHANCE)
def test_a_projection_of_what_was_sent_is_the_same(
    old: dict[str, Any], new: dict[str, Any], some: list[str], more: list[str], chance: Random
) -> None:
    """Projecting twice changes nothing, and picking a part of what was picked is picking that part."""
    found = modified(spelled(old, chance).strip(), spelled(new, chance).strip()) or event(spelled(new))
    for one in (projection_of(pick=some), projection_of(drop=some), projection_of(drop=some, thin=True)):
        sent = one.of(found)
        assert sent is None or one.of(sent) == sent
    wide, narrow = projection_of(pick=[*some, *more]), projection_of(pick=some)
    sent = wide.of(found)
    assert (narrow.of(sent) if sent else None) == narrow.of(found)


@MANY
@given(RECORDS, RECORDS, POINTERS, st.booleans(), CHANCE)
@example({"id": "K", "a": {"b": "1"}}, {"id": "K", "a": [2]}, ["/a/b"], True, Random(1))
@example({"id": "K", "a": {"b": "1"}}, {"id": "K", "a": [2]}, ["/a/b"], False, Random(1))
@example({"id": "K", "a": [{"b": "1"}]}, {"id": "K", "a": [{"b": "2"}]}, ["/a/0/b"], False, Random(1))
def test_changed_names_what_the_receiver_can_see(
    old: dict[str, Any], new: dict[str, Any], pointers: list[str], pick: bool, chance: Random
) -> None:
    """An event is sent if and only if the projected versions differ, and ``changed`` names where they do.

    Nothing that was dropped or not picked is named, also in a thin event.
    """
    found = modified(spelled(old, chance).strip(), spelled(new, chance).strip())
    if found is None:
        return
    settings: dict[str, Any] = {"pick" if pick else "drop": pointers}
    sent, thin = projection_of(**settings).of(found), projection_of(**settings, thin=True).of(found)
    whole = [opinion_record(projection_of(**settings).of(event(raw_record(found, name)))) for name in SIDES]
    assert (sent is None) == (whole[0] == whole[1])
    assert (thin is None) == (sent is None)
    if sent is None:
        return
    data = data_of(sent)
    seen = differing(*(read(raw_record(sent, name)) for name in SIDES))
    assert data["changed"] == sorted(set(data["changed"]))
    assert all(touches(one, seen) for one in data["changed"])
    assert all(touches(one, data["changed"]) for one in seen)
    for named in data["changed"]:
        if pick:
            assert touches(named, [*pointers, "/id"])
        else:
            assert not any(named == one or named.startswith(f"{one}/") for one in pointers)
    assert data_of(thin) == {name: data[name] for name in ("changed", "revision", "cause")}


SIDES: Final = ("previous", "record")


def opinion_record(sent: Event | None) -> object:
    return opinion(raw_record(sent))


def read(raw: bytes) -> Any:
    from tests.harness import json_values  # noqa: PLC0415 -- its name says less than this one

    return json_values.read(raw)


SECRET: Final = "s3cr3t-value"  # noqa: S105 -- what must not leave
_HIDDEN: Final = [
    {"reason": SECRET},
    {"reason": {"code": SECRET, "n": [SECRET]}},
    {"who": {"name": SECRET, "age": 3}},
    {"list": [{"name": SECRET}]},
    {"lastModifiedAt": SECRET},
]
_DROP: Final = ["/reason", "/who/name", "/list/0/name", "/lastModifiedAt"]
_SIGNING: Final = new_secret(b"s" * 32)


def requests_of(found: Event, projection: Projection) -> Iterator[tuple[dict[str, str], bytes]]:
    """The requests that a subscription makes of an event, in each mode."""
    tracker = DeliveryTracker(subscription(), projection)
    refused = tracker.take_in([("1-0", found[1])], now=NOW)
    assert not refused
    unit = tracker.queues.claim(most=9)
    items = [one.item for one in unit if one.item]
    modes: tuple[Mode, ...] = ("structured", "binary", "batch")
    for mode in modes if items else ():
        form = RequestForm(mode, signer=Signer([_SIGNING]), user_agent="poller")
        request = form.request(items, timestamp=int(datetime.now(UTC).timestamp()))
        Webhook(_SIGNING).verify(request.body, dict(request.headers))
        yield dict(request.headers), request.body


@FEW
@given(
    st.lists(st.sampled_from(_HIDDEN), max_size=3),
    st.lists(st.sampled_from(_HIDDEN), max_size=3),
    st.sampled_from(["created", "modified", "removed"]),
    st.booleans(),
    CHANCE,
)
def test_no_dropped_value_leaves(
    before: list[dict[str, Any]], after: list[dict[str, Any]], kind: str, thin: bool, chance: Random
) -> None:
    """A value that was dropped is in no byte of a request: body, headers and batch, of both versions of the record.

    What is signed is what is sent: each request verifies.
    """
    old, new = ({"id": "K", "n": str(number)} for number in range(2))
    for one in before:
        old |= one
    for one in after:
        new |= one
    old_raw, new_raw = spelled(old, chance).strip(), spelled(new, chance).strip()
    found = event(new_raw) if kind == "created" else event(None, old_raw) if kind == "removed" else None
    found = found or modified(old_raw, new_raw)
    assert found
    pick = ["/n", "/who/age"]
    every = [projection_of(drop=_DROP, thin=thin), projection_of(pick=pick, thin=thin), projection_of(thin=True)]
    for projection in every:
        made = list(requests_of(found, projection))
        assert len(made) == 3
        for headers, body in made:
            assert SECRET.encode() not in body
            assert not any(SECRET in value for value in headers.values())
            assert b'"n"' in body or thin or projection is every[2]


def test_a_dropped_time_is_in_no_attribute() -> None:
    """``drop`` of lastModifiedAt also replaces the attribute ``time``, which is made of it; ``pick`` keeps ``time``."""
    found = event(b'{"id":"K","lastModifiedAt":"2026-01-01T00:00:00Z"}')
    hidden, kept = projection_of(drop=["/lastModifiedAt"]).of(found), projection_of(pick=["/a"]).of(found)
    assert hidden
    assert kept
    assert json.loads(hidden[1])["time"] == hidden[0].time == RECORDED
    assert b"2026-01-01" not in hidden[1]
    assert kept[0].time == json.loads(kept[1])["time"] == "2026-01-01T00:00:00Z"
    other = foreign(time="2026-01-01T00:00:00Z", data={"record": {"id": "K"}})
    (timeless,) = [projection_of(drop=["/lastModifiedAt"]).of((envelope_of(other), other))]
    assert timeless
    assert "time" not in json.loads(timeless[1])


def test_what_an_event_has_beside_its_records_stays() -> None:
    """Attributes, revision, cause and omitted stay; the id stays, so a receiver still knows a repeat."""
    found = event(b'{"id":"K","a":1,"b":2}', None, ("",))
    sent = projection_of(pick=["/a"]).of(found)
    assert sent
    assert sent[0].id == found[0].id
    assert {**json.loads(sent[1]), "data": None} == {**json.loads(found[1]), "data": None}
    assert data_of(sent) == {
        "record": {"id": "K", "a": 1},
        "omitted": ["previous"],
        "changed": [""],
        "revision": 2,
        "cause": "delta",
    }
    assert envelope_of(sent[1]) == sent[0]


def test_where_the_version_before_is_left_out_all_that_may_have_changed_is_named() -> None:
    """Of a large event, which has no previous version, a doubtful change is sent with the pointers that may differ."""
    found = event(b'{"id":"K","a":[1],"b":{"c":1}}', None, ("/a", "/b"))
    assert data_of(projection_of(pick=["/b/c", "/b/d"]).of(found))["changed"] == ["/b/c", "/b/d"]
    assert data_of(projection_of(drop=["/b/c"]).of(found))["changed"] == ["/a", "/b"]
    assert data_of(projection_of(drop=["/b"]).of(found))["changed"] == ["/a"]
    assert projection_of(drop=["/b", "/a"]).of(found) is None


def test_members_that_are_not_known_are_not_sent() -> None:
    """Of ``data`` only what the program knows is sent: another member may repeat a dropped value."""
    written = foreign(data={"record": {"id": "K", "a": 1}, "copy": {"a": 1}, "revision": 3, "cause": "delta"})
    sent = projection_of(drop=["/a"]).of((envelope_of(written), written))
    assert data_of(sent) == {"record": {"id": "K"}, "revision": 3, "cause": "delta"}


@pytest.mark.parametrize(
    "members",
    [
        {"data": "text"},
        {"data": [1]},
        {"data": {"record": "text"}},
        {"data": {"previous": [{"a": 1}]}},
        {"data": {"changed": "/a"}},
        {"data": {"changed": [1]}},
        {"data_base64": "e30="},
    ],
)
def test_what_cannot_be_cut_is_not_sent(members: dict[str, Any]) -> None:
    """An event of another form is refused and never sent whole; the reason repeats nothing of it."""
    written = foreign(**members)
    tracker = DeliveryTracker(subscription(), projection_of(drop=["/a"]))
    ((entry, reason),) = tracker.take_in([("1-0", written)], now=NOW)
    assert entry == "1-0"
    assert "fields and thin cannot be applied" in reason
    assert not tracker.queues.ready
    assert not DeliveryTracker(subscription()).take_in([("1-0", written)], now=NOW)


def test_a_key_that_occurs_twice_is_refused() -> None:
    """A record with a key twice would be cut at the wrong place, so nothing of it is sent."""
    written = event(b'{"id":"K","a":1}')[1].replace(b'"a":1', b'"a":1,"b":2,"a":3')
    with pytest.raises(ValueError, match="a record has a key twice"):
        projection_of(drop=["/b"]).of((envelope_of(written), written))


def test_a_subscription_without_settings_sends_the_entry_itself() -> None:
    """Without ``fields`` and ``thin`` the bytes of the entry are sent, and nothing is made of them."""
    _, written = event(b'{"id":"K","a":1}')
    tracker = DeliveryTracker(subscription())
    tracker.take_in([("1-0", written)], now=NOW)
    (one,) = tracker.queues.claim()
    assert one.item
    assert one.item[1] is written


def test_an_event_of_which_nothing_is_sent_counts_as_settled() -> None:
    """A change of dropped fields alone is acknowledged like a filtered event, and its record goes on."""
    tracker = DeliveryTracker(subscription(), projection_of(drop=["/reason"]))
    old, new = b'{"id":"K","reason":1}', b'{"id":"K","reason":2}'
    hidden, shown = event(new, old, ("/reason",)), event(old.replace(b"}", b',"n":1}'), old, ("/n",))
    assert not tracker.take_in([("1-0", hidden[1]), ("2-0", shown[1])], now=NOW)
    assert [one.id for one in tracker.queues.claim(most=9)] == ["2-0"]
    batch = tracker.next_batch()
    assert batch
    assert batch.acked == ["1-0"]
    assert EntryId.parse("1-0") <= EntryId.parse(tracker.place) < EntryId.parse("2-0")


def test_limits_of_a_batch_count_what_is_sent() -> None:
    """Events that are large only in what is dropped go together in one batch."""
    large = b'{"id":"K","reason":"%b"}' % (b"x" * 20_000)
    for projection, together in ((None, 1), (projection_of(drop=["/reason"]), 9)):
        tracker = DeliveryTracker(subscription(), projection)
        tracker.take_in([(f"{number}-0", event(large)[1]) for number in range(1, 10)], now=NOW)
        assert len(tracker.queues.claim(most=100, most_bytes=30_000)) == together


def test_equal_settings_share_what_they_make() -> None:
    """Subscriptions with equal settings have one projection, which makes the same event once."""
    one, same = projection_of(drop=["/a", "/b"]), projection_of(drop=["/b", "/a", "/a"])
    assert one is same
    found = event(b'{"id":"K","a":1}')
    first, second = one.of(found), same.of((envelope_of(bytes(found[1])), bytes(found[1])))
    assert first is second
    others = [projection_of(pick=["/a", "/b"]), projection_of(drop=["/a"]), projection_of(drop=["/a", "/b"], thin=True)]
    assert len({id(each) for each in [one, *others, projection_of(drop=["/a", "/b"], id_field="code")]}) == 5


def test_the_id_field_of_the_feed_is_kept() -> None:
    """``pick`` keeps the field that identifies a record, whatever its name, and no other one called id."""
    found = event(b'{"code/x":"K","id":"1","a":1,"b":2}')
    assert data_of(projection_of(pick=["/a"], id_field="code/x").of(found))["record"] == {"code/x": "K", "a": 1}


@FEW
@given(RECORDS, RECORDS, POINTERS, st.booleans())
def test_what_is_sent_is_valid_under_the_schema_of_its_type(
    old: dict[str, Any], new: dict[str, Any], pointers: list[str], pick: bool
) -> None:
    """An event of which fields are left out is valid under the schema of the stream's events.

    A thin event is, too, but for the record, which that schema requires.
    """
    schema = event_schema(STEM, ChangeKind.MODIFIED)
    found = modified(spelled(old), spelled(new))
    kept = [one for one in pointers if one != "/id"]
    if found is None or not kept:
        return
    settings: dict[str, Any] = {"pick" if pick else "drop": kept}
    sent, thin = projection_of(**settings).of(found), projection_of(**settings, thin=True).of(found)
    if sent is None or thin is None:
        return
    Draft202012Validator(schema).validate(json.loads(sent[1]))
    schema["properties"]["data"]["required"].remove("record")
    Draft202012Validator(schema).validate(json.loads(thin[1]))


def test_pointers_touch_above_and_below() -> None:
    """A pointer touches itself, what is below it and what is above it, and no other key that begins alike."""
    assert touches("/a/b", ["/a/b"])
    assert touches("/a/b", ["/a"])
    assert touches("/a", ["/a/b"])
    assert touches("", ["/a/b"])
    assert not touches("/a", ["/ab", "/b/a"])
    assert not touches("/ab", ["/a"])
