"""Laws of :mod:`poller.telemetry.catalogue`: all metrics are known by name, once, in the words of the manual."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from typing import Final

import pytest

import poller.telemetry
from poller.telemetry.catalogue import Described, declared, described, labelled
from tests import documents
from tests.telemetry.series import key, values

MANUAL: Final = documents.MANUAL.read_text("utf-8")


def all_of() -> list[Described]:
    for module in pkgutil.iter_modules(poller.telemetry.__path__):
        import_module(f"poller.telemetry.{module.name}")
    return list(described())


def row(one: Described) -> str:
    labels = f"{{{','.join(one.labels)}}}" if one.labels else ""
    return f"| `{one.name}{labels}` | {one.text} |"


def test_the_manual_has_all_of_them_and_no_other() -> None:
    """The table is what the code says, line by line."""
    table = [line for line in MANUAL.splitlines() if re.match(r"\| `poller_", line)]
    rows = [row(one) for one in all_of()]
    assert sorted(table) == sorted(rows), "the table has to be:\n" + "\n".join(rows)


def test_names_say_the_unit_and_the_kind() -> None:
    """Counters end in _total and nothing else does; durations, ages and moments are in seconds."""
    for one in all_of():
        assert one.name.startswith("poller_")
        assert one.name.endswith("_total") == (one.kind == "counter")
        assert (one.kind != "histogram") or one.name.endswith("_seconds")


def test_a_name_is_given_once() -> None:
    """A second declaration is a fault of the program."""
    name = all_of()[0].name
    with pytest.raises(ValueError, match="declared twice"):
        declared(name, "gauge", "another meaning")


def test_whatever_a_label_holds_it_is_read_as_it_was() -> None:
    """Quotes, backslashes and line breaks; and no text of ours needs such care."""
    strange = 'a"b\\c\nd'
    one = Described("poller_x_total", "counter", ("feed",), "text")
    assert values(one.block([(labelled(feed=strange), 2)], openmetrics=False)) == {
        key("poller_x_total", feed=strange): 2
    }
    assert one.block([], openmetrics=True) == "# HELP poller_x text\n# TYPE poller_x counter\n"
    assert not any(set(known.text) & set('"\\\n') for known in all_of())
