"""Laws of :mod:`poller.control.orphans`: which feeds no process has, and where configurations differ."""

from __future__ import annotations

import pytest

from poller.config.settings import Settings
from poller.control.orphans import ConfigurationDifference, claimed, differences, orphaned, stated
from poller.store.members import UNSAID, MemberConfiguration, MemberList

OLD, NEW = MemberConfiguration(("acme/x", "acme/old")), MemberConfiguration(("acme/x", "acme/new"))
KNOWN = ("acme/x", "acme/old", "acme/new", "acme/gone")


def seen(**configurations: MemberConfiguration) -> MemberList:
    """Processes that poll and deliver; one that is called ``poller`` polls alone."""
    roles = {name: frozenset({"poll"} if name == "poller" else {"poll", "deliver"}) for name in configurations}
    return MemberList("1", roles, configurations)


@pytest.mark.parametrize(
    ("there", "own", "expected"),
    [
        (seen(a=OLD, b=NEW), (), ("acme/gone",)),
        (seen(b=NEW), (), ("acme/gone", "acme/old")),
        (seen(b=NEW), ("acme/old",), ("acme/gone",)),
        (seen(b=NEW, a=UNSAID), (), ()),
        (MemberList("1", {"b": frozenset({"poll"})}, {}), (), ()),
        (seen(), ("acme/x",), ("acme/gone", "acme/new", "acme/old")),
    ],
)
def test_a_feed_is_orphaned_where_no_live_process_may_have_it(
    there: MemberList, own: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """Law: a process that does not say what it has may have any; the configuration at hand counts as well."""
    assert orphaned(KNOWN, there, own) == expected


def test_what_those_have_that_do_a_role() -> None:
    """Law: of the others nothing counts, not even that they do not say it."""
    for alone in (OLD, UNSAID):
        assert claimed(seen(poller=alone, b=NEW), role="deliver") == frozenset({"acme/x", "acme/new"})
    assert claimed(seen(poller=UNSAID, b=NEW)) is None


def settings(base_url: str, sink: str) -> Settings:
    return Settings.model_validate(
        {
            "sources": [{"name": "acme", "base_url": base_url, "feeds": [{"resource": "contractTypes"}]}],
            "subscriptions": [{"id": "w", "sink": sink}],
        }
    )


def test_what_differs_is_named_with_both_sides_and_without_values() -> None:
    """Law: who agrees stands together; a sink's address, which may be a secret, is in nothing that is said."""
    one = stated(settings("https://api.example.org/v1", "https://hooks.example.org/T0/s3cr3t"))
    other = stated(settings("https://api.example.org/v2", "https://hooks.example.org/T0/other"))
    assert one.feeds == ("acme/contractTypes",)
    assert "s3cr3t" not in repr(one)
    assert differences({"a": one, "b": one, "d": UNSAID}) == []
    found = differences({"a": one, "b": other, "c": one, "d": UNSAID})
    sides = (("a", "c"), ("b",))
    assert found == [
        ConfigurationDifference("base_url of source acme", sides),
        ConfigurationDifference("sink of subscription w", sides),
    ]
    assert found[0].text.startswith("base_url of source acme is another one in a, c than in b:")
