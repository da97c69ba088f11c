"""Laws of :mod:`poller.changes.canonical`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.canonical import (
    MAX_DEPTH,
    MOST_ZEROS,
    TOO_DEEP,
    canonical,
    deeper_than,
    encode,
    forms_received,
    own_members,
    parse,
    parse_received,
    refuse_ambiguous,
    same,
    without,
)
from tests.changes.samples import CHANCE, FEW, KEYS, MANY, TREES, opinion, spelled
from tests.harness.growth import LINEAR, growth

LONG = b"7" * 5_000  # more digits than the fast decoder accepts


@MANY
@given(TREES, CHANCE)
def test_spelling_does_not_count(tree: Any, chance: Random) -> None:
    """Key order, white space, escapes and the spelling of numbers do not change the canonical form."""
    assert canonical(spelled(tree, chance)) == canonical(spelled(tree))


@MANY
@given(TREES, TREES)
def test_equality_is_that_of_exact_fractions(left: Any, right: Any) -> None:
    """Two texts share a canonical form if and only if the standard library and exact fractions call them equal."""
    one, other = spelled(left), spelled(right)
    assert (canonical(one) == canonical(other)) == (opinion(one) == opinion(other))
    assert same(parse(one), parse(other)) == (opinion(one) == opinion(other))


@MANY
@given(TREES)
def test_the_canonical_form_is_its_own(tree: Any) -> None:
    """The canonical form is its own canonical form, and equal to the text as JSON."""
    form = canonical(spelled(tree))
    assert canonical(form) == form
    assert opinion(form) == opinion(spelled(tree))


@FEW
@given(TREES, TREES, CHANCE)
def test_the_slow_way_agrees_with_the_fast_one(left: Any, right: Any, chance: Random) -> None:
    """The slow decoder reads every value as the fast decoder does."""
    one, other = spelled(left, chance), spelled(right)
    slow = [canonical(b"[%b,%b]" % (LONG, text)) for text in (one, other)]
    assert slow[0] == b"[%b,%b]" % (LONG, canonical(one))
    assert (slow[0] == slow[1]) == (canonical(one) == canonical(other))


@pytest.mark.parametrize(
    "spellings",
    [
        (b"1", b"1.0", b"1e0", b"10e-1", b"0.1e1", b"1.000"),
        (b"0", b"-0", b"0.0", b"-0.0", b"0e7"),
        (b"1e400", b"10e399", b"1" + b"0" * 400, b"0.1e401"),
        (b"1e4299", b"1" + b"0" * 4299),
        (b"1e4300", b"1" + b"0" * 4300, b"10.0e4299"),
        (LONG, LONG + b".0", LONG + b"0e-1"),
        (b"-" + LONG, b"-" + LONG + b".00"),
        (b"0.1", b"0.10", b"1e-1", b"0.01e1"),
    ],
    ids=lambda spellings: spellings[0][:8].decode(),
)
def test_a_number_has_one_form(spellings: tuple[bytes, ...]) -> None:
    """All spellings of one number, of any size, share one canonical form."""
    assert len({canonical(spelling) for spelling in spellings}) == 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (b"0.1", b"0.1000000000000000000001"),
        (b"123456789012345678901234567890", b"123456789012345678901234567891"),
        (LONG + b"1", LONG + b"2"),
        (b"9007199254740993.0", b"9007199254740992.0"),
        (b"1e400", b"1e401"),
        (b"1e400", b"1.0000000000000000000000000000001e400"),
        (b"1e-400", b"0"),
        (b"true", b"1"),
        (b"false", b"0"),
        (b"null", b"false"),
        (b'"1"', b"1"),
        (b'{"a":null}', b"{}"),
        (b"[1,2]", b"[2,1]"),
        (b"[]", b"{}"),
        (b'"\\u00e9"', b'"e\\u0301"'),
    ],
    ids=lambda text: text[:12].decode(),
)
def test_what_differs_stays_apart(left: bytes, right: bytes) -> None:
    """Texts that differ in a number, a type, a null member, array order or code points have different forms."""
    assert canonical(left) != canonical(right)
    assert not same(parse(left), parse(right))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"NaN", "not JSON"),
        (b"[-Infinity]", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"01", "not JSON"),
        (b"", "not JSON"),
        (b"1 2", "not JSON"),
        (b"\xef\xbb\xbf1", "not JSON"),
        (b'"\\ud800"', "not JSON"),
        (b'{"\\udfff":1}', "not JSON"),
        (b'"\x01"', "not JSON"),
        (b'"\xff"', "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b'{"k\xff":1}', "not UTF-8"),
        (b"[" * 100_000 + b"]" * 100_000, TOO_DEEP),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, TOO_DEEP),
        (b"1e99999999999999999999", "a number is out of any range"),
        (b"1e-99999999999999999999", "a number is out of any range"),
    ],
    ids=lambda value: repr(value[:16]),
)
@pytest.mark.parametrize("way", ["fast", "slow"])
def test_what_is_not_json_is_refused(raw: bytes, reason: str, way: str) -> None:
    """Text that is not JSON raises a plain ValueError with the parser's own reason, from both decoders."""
    text = raw if way == "fast" else b"[%b,%b]" % (LONG, raw)
    with pytest.raises(ValueError, match=f"^{reason}") as refused:
        parse(text)
    assert type(refused.value) is ValueError


@pytest.mark.parametrize(
    ("pointers", "left"),
    [
        (("/lastModifiedAt",), b'{"a":{"b":1,"c":[{"b":1}]},"x/y":2,"~":3}'),
        (("/a/b",), b'{"a":{"c":[{"b":1}]},"x/y":2,"~":3,"lastModifiedAt":0}'),
        (("/x~1y", "/~0"), b'{"a":{"b":1,"c":[{"b":1}]},"lastModifiedAt":0}'),
        (("/a/c/0/b", "/nothing", "/lastModifiedAt/deeper", "/a/b/deeper"), None),
        (("/a/b", "/a"), b'{"x/y":2,"~":3,"lastModifiedAt":0}'),
        (("/~01",), None),
        ((), None),
    ],
)
def test_ignored_pointers_are_left_out(pointers: tuple[str, ...], left: bytes | None) -> None:
    """Exactly the members that the pointers name are removed, never inside arrays; the given value is unchanged."""
    raw = b'{"a":{"b":1,"c":[{"b":1}]},"x/y":2,"~":3,"lastModifiedAt":0}'
    value = parse(raw)
    assert same(without(pointers)(value), parse(left or raw))
    assert same(value, parse(raw))


def test_escapes_are_undone_in_the_order_of_rfc_6901() -> None:
    """The pointer token ``~01`` means the key ``~1``, not a slash."""
    assert same(without(("/~01",))(parse(b'{"~1":1,"/":2}')), parse(b'{"/":2}'))


# Laws of :mod:`poller.changes.canonical`.

COLONS = st.sampled_from([r"\u003a", r"\u003A", r"\":", ":", r"\\u003a", "b", ""])
TEXTS = st.lists(COLONS, max_size=2).map(lambda parts: '"' + "".join(parts) + '"')
VALUES = st.one_of(TEXTS, st.sampled_from(["1", "1.0", "1e1", "1e-7", "12345678901234567890123", "0.10"]))
# JSON texts in which keys repeat, escapes hide colons, and numbers are longer or shorter in their canonical form.
OBJECTS: st.SearchStrategy[str] = st.recursive(
    VALUES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(lambda items: f"[{' ,'.join(items)}]"),
        st.lists(st.tuples(TEXTS, inner), max_size=4).map(
            lambda members: "{" + ", ".join(f"{key} :{value}" for key, value in members) + "}"
        ),
    ),
    max_leaves=8,
)


def twice(text: str) -> bool:
    """Whether a key is repeated in any object, by a simple reference implementation."""
    found = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({key for key, _ in pairs}) < len(pairs)

    json.loads(text, object_pairs_hook=look)
    return found


@MANY
@given(OBJECTS)
def test_a_text_is_refused_if_and_only_if_a_key_stands_twice(text: str) -> None:
    """A text is refused if and only if a key occurs twice in an object, at any depth."""
    with pytest.raises(ValueError, match="stands twice") if twice(text) else nullcontext():
        parse_received(text.encode())


@FEW
@given(TREES, CHANCE)
def test_what_is_sound_has_its_value(tree: Any, chance: Random) -> None:
    """A text without repeated keys has the same value and canonical form as without the check."""
    raw = spelled(tree, chance)
    value, form = parse_received(raw)
    assert form == encode(value) == encode(parse(raw))


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b'{"name":1,"name":1}', '"name"'),
        (b'{"a":[{"b":{"c":1,"d":2,"c":3}}]}', '"c"'),
        (rb'{"\u00e9":1,"x":"\u003a","' + "é".encode() + b'":2}', r'"\u00e9"'),
        (b'{"a":{"a:a":1},"a":1e-30}', '"a"'),
        (rb'{"a\u003a":1,"a:":1}', '"a:"'),
        (b'{"":1,"":{}}', '""'),
        (b'{"%b":1,"%b":1}' % (b"k" * 1000, b"k" * 1000), '"' + "k" * 60 + '"'),
        (b'{"a":%b,"a":1}' % (b"7" * 5_000), '"a"'),
    ],
)
def test_the_reason_names_the_key(raw: bytes, key: str) -> None:
    """The error names the repeated key in one short printable line."""
    with pytest.raises(ValueError, match="twice") as refused:
        parse_received(raw)
    assert str(refused.value) == f"the key {key} stands twice"
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"]":', b"}]"), (b'["[{\\"",', b"]")])
def test_the_limit_itself_is_within_the_limit(begin: bytes, end: bytes) -> None:
    """The deepest allowed nesting passes and one more level does not; brackets in strings do not count."""
    wide = begin.count(b"[") + begin.count(b"{") - begin.count(b'"[{') * 2
    times = MAX_DEPTH // wide
    fits = begin * times + b"1" + end * times
    parse_received(b'"%b"' % (b"[" * 500))
    parse_received(fits)
    with pytest.raises(ValueError, match=f"^{TOO_DEEP}$"):
        parse_received(b"[%b]" % fits)


@MANY
@given(TREES, st.integers(0, 4))
def test_depth_is_that_of_the_value(tree: Any, levels: int) -> None:
    """The depth of a text is that of its nested containers."""

    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    assert deeper_than(spelled(tree), levels) == (depth(tree) > levels)


@MANY
@given(st.lists(st.tuples(KEYS | st.just("a:b"), TREES), max_size=5), CHANCE)
def test_own_members_are_told_apart(members: list[tuple[str, Any]], chance: Random) -> None:
    """Each member keeps its bytes, and exactly the repeated keys are reported."""
    raw = b"{%b}" % b",".join(b"%b :%b" % (spelled(key, chance), spelled(value, chance)) for key, value in members)
    found, repeated = own_members(raw)
    keys = [key for key, _ in members]
    assert repeated == {key for key in keys if keys.count(key) > 1}
    assert {key: parse(value) for key, value in found.items()} == {key: parse(spelled(value)) for key, value in members}


def test_many_keys_are_not_depth() -> None:
    """Brackets and colons side by side do not count as nesting, however many there are."""
    parse_received(b'{"a":[' + b",".join([b'{"b":[{"c":"[{"}]}'] * 200) + b"]}")


def test_any_form_that_hides_no_colon_will_do() -> None:
    """The check counts colons, so the order and spelling of the rewritten value do not matter."""
    refuse_ambiguous(b'{"b":1.0, "a":":"}', b'{ "a" : ":" , "b" : 1 }')


@pytest.mark.parametrize("text", [b'["a\\"', b'{"a', b'"', b'\\"', b"[]", b'[["', b"]"])
def test_depth_is_found_in_time_by_the_length_of_the_text_alone(text: bytes) -> None:
    """The depth check takes time linear in the length of the text, whether the text is JSON or not."""
    assert growth(lambda size: deeper_than(b"[" * 200 + text * (size // len(text)), 100), 4 * 1024) < LINEAR


def test_long_integers_are_found_in_time_by_the_length_of_the_text_alone() -> None:
    """Parse time depends on the length of the text, not on the length of the integers in it."""
    numbers = b"[%b]" % b",".join([b'"%b"' % (b"7" * 4_300)] * 100)

    def read(digits: int) -> None:
        parse_received(b'["%b"]' % b"x".join([b"7" * digits] * (400_000 // digits)))

    assert growth(read, 530, limit=3) < 3
    assert parse_received(numbers)[1] == numbers


@pytest.mark.parametrize("place", [0, 1, 4_299, 4_300, 4_301, 8_600, 9_000])
def test_an_integer_is_too_long_wherever_it_stands(place: int) -> None:
    """An integer of 4 300 digits is accepted and one of 4 301 digits is refused, at any position in the text."""
    head = b'{"x":"%b","n":[1,' % (b"x" * place)
    assert parse_received(head + b"7" * 4_300 + b",12]}")
    with pytest.raises(ValueError, match="an integer of 4301 digits"):
        parse_received(head + b"-" + b"7" * 4_301 + b",12]}")


@pytest.mark.parametrize("other", [b"1", b"7" * 4_400])
def test_exponents_stand_for_a_bounded_number_of_zeros(other: bytes) -> None:
    """A text whose exponents expand to too many zeros is refused; a few large exponents are accepted."""
    few = [b"1e4000"] * (MOST_ZEROS // 4_000)
    value = parse(b"[%b,%b]" % (other, b",".join(few)))
    assert value[1:] == [10**4_000] * len(few)
    with pytest.raises(ValueError, match=f"more than {MOST_ZEROS} zeros"):
        parse(b"[%b,%b]" % (other, b",".join([*few, b"1e1"])))
    assert parse(b"[%b]" % b",".join(few)) == value[1:]  # each text has its own allowance


PLAIN = b'{"id":"a","n":1.50,"s":"[{:\\n"}'


@MANY
@given(st.lists(OBJECTS.map(str.encode) | st.builds(spelled, TREES, CHANCE), max_size=5))
def test_texts_that_are_read_together_are_as_each_by_itself(raws: list[bytes]) -> None:
    """Reading texts together gives for each what reading it by itself gives, or nothing at all."""
    forms = forms_received(raws)
    assert forms is None or forms == [parse_received(raw)[1] for raw in raws]


@MANY
@given(st.data(), st.lists(KEYS, min_size=1, max_size=4, unique=True), CHANCE)
def test_texts_with_the_same_keys_are_as_each_by_itself(data: st.DataObject, keys: list[str], chance: Random) -> None:
    """Texts with the keys of the first one, fewer or others, in any spelling, have the same forms as by themselves."""
    alike = st.fixed_dictionaries({}, optional=dict.fromkeys(keys, TREES))
    trees: list[Any] = [dict.fromkeys(keys, 1), *data.draw(st.lists(alike, max_size=3))]
    trees += data.draw(st.sampled_from(([], [{"other": 1}], [[]])))
    forms = forms_received([spelled(tree, chance) for tree in trees])
    assert forms is None or forms == [parse_received(spelled(tree))[1] for tree in trees]
    small = [json.dumps({key: at for at, key in enumerate(keys[start:])}).encode() for start in range(len(keys) + 1)]
    for texts in (small, [*small, b'{"\\"other":[]}']):
        assert forms_received(texts) == [parse_received(text)[1] for text in texts]


def test_what_does_not_count_is_left_out_of_the_forms() -> None:
    """With a function that removes what does not count, the forms are those of what is left."""
    assert forms_received([b'{"b":1,"a":2}', b'{"a":3,"b":2}'], without(("/b",))) == [b'{"a":2}', b'{"a":3}']


def test_a_repeated_key_does_not_hide_behind_a_number_that_becomes_longer() -> None:
    """Forms that are together as long as their texts are no proof where a number is spelled with an exponent."""
    texts = [b'{"a":1,"a":1}', b'{"a":1e8}']
    assert sum(map(len, texts)) == len(b'{"a":1}') + len(b'{"a":100000000}')
    assert forms_received(texts) is None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"a":1}',
        rb'{"a\u003a":1,"a:":1}',
        rb'{"a":"\u003a","b":1,"b":1}',
        b'{"a":NaN}',
        b'{"a":"\xff"}',
        b'{"a":1',
        b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
        b'{"a":[' * (MAX_DEPTH // 2) + b"[1]" + b"]}" * (MAX_DEPTH // 2),
        b'{"":' * MAX_DEPTH + b"{}" + b"}" * MAX_DEPTH,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":%b}' % (b"7" * 4_301),
        b'{"a":1e99999999999999999999}',
        b'{"a":[%b]}' % b",".join([b"1e4000"] * (MOST_ZEROS // 4_000 + 1)),
        rb'{"a":"\ud800"}',
    ],
)
def test_a_text_that_is_refused_is_not_read_together_with_others(raw: bytes) -> None:
    """Where one text has to be refused, each is read by itself; sound ones before and after it are read together."""
    with pytest.raises(ValueError, match=r"."):
        parse_received(raw)
    assert forms_received([PLAIN, raw, PLAIN]) is None
    assert forms_received([raw]) is None
    assert forms_received([PLAIN] * 200) == [parse_received(PLAIN)[1]] * 200


def test_each_of_the_texts_read_together_has_zeros_of_its_own() -> None:
    """Exponents that are too many for one text, and not for each of two, refuse neither."""
    half = b"[%b]" % b",".join([b"1e4000"] * (MOST_ZEROS // 4_000))
    assert parse_received(half)
    assert forms_received([half, half]) is None  # each is read by itself
    assert forms_received([b'{"a":1e4000}', b'{"b":1e4000}']) is not None
