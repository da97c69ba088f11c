"""Generates tables and sections of the documents, which tests/test_documents.py compares with their source.

``python -m tests.document_tables`` writes each of them between its two comments. Do not edit them by hand: correct the
description in the code, or the alarm in deploy/prometheus/alerts.yml, and run it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from textwrap import fill
from typing import Any, Final

import yaml

from poller.config.settings import config_schema
from poller.telemetry.metrics import MetricDescription, described
from tests.documents import ROOT, write_table

_DEFAULT: Final = re.compile(r" Default: (.*)\.$")
_AUTH_ONCE: Final = "sources[].auth."
"""A sink's credential has the same kinds; they are described once."""


def configuration() -> str:
    """A table of every key of ``poller.toml`` with its default and meaning."""
    schema = config_schema()
    rows = ["| key | default | |", "|---|---|---|"]
    rows += [f"| `{path}` | {default} | {text} |" for path, default, text in _keys(schema, schema["$defs"], "")]
    return "\n".join(rows)


def _keys(node: Mapping[str, Any], tables: Mapping[str, Any], above: str) -> Iterator[tuple[str, str, str]]:
    required = node.get("required", ())
    for name, key in node["properties"].items():
        path = above + name
        inner = _table(key, tables)
        if inner is None or name == "filters":
            yield path, *_told(key.get("description", ""), required=name in required)
        elif path.startswith("subscriptions[].auth"):
            text, default = _told(key["description"], required=False)[::-1]
            yield path, default, f"{text}; the kinds of `{_AUTH_ONCE.rstrip('.')}`"
        else:
            yield from _keys(inner, tables, f"{path}[]." if key.get("type") == "array" else f"{path}.")


def _table(key: Mapping[str, Any], tables: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The table under a key; None if the key has a value."""
    reference = key.get("$ref") or key.get("items", {}).get("$ref")
    return None if reference is None else tables[reference.rpartition("/")[2]]


def _told(description: str, *, required: bool) -> tuple[str, str]:
    """The default and the meaning of a key."""
    found = _DEFAULT.search(description)
    text = (description[: found.start()] if found else description).removesuffix(".")
    return ("required" if required else found[1] if found else "", text.replace("|", "\\|"))


_OF_THE_STORE: Final = tuple(
    f"poller_{name}_" for name in ("feed", "stream", "quarantine", "subscription", "orphaned", "configuration")
)


def declared_metrics() -> list[MetricDescription]:
    """Every metric of the program, by name."""
    import_module("poller.app")  # imports every module that declares metrics
    return sorted(described(), key=lambda one: one.name)


def _metric_rows(heading: str, *, of_the_store: bool) -> str:
    rows = [f"| {heading} | |", "|---|---|"]
    for one in declared_metrics():
        if (one.name.startswith(_OF_THE_STORE) or one.name == "poller_members") == of_the_store:
            labels = f"{{{','.join(one.labels)}}}" if one.labels else ""
            rows.append(f"| `{one.name}{labels}` | {one.text} |")
    return "\n".join(rows)


def process_metrics() -> str:
    """A table of the metrics that each process counts itself."""
    return _metric_rows("of this process", of_the_store=False)


def store_metrics() -> str:
    """A table of the metrics that are read from the store."""
    return _metric_rows("of the store", of_the_store=True)


ALARMS: Final = ROOT / "deploy" / "prometheus" / "alerts.yml"
_WIDTH: Final = 120
_CODE: Final = re.compile(r"`[^`]+`")
_KEPT_SPACE: Final = "\u00a0"
_LABEL: Final = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
_PLACEHOLDERS: Final = {"feed": "FEED", "subscription": "ID", "source": "SOURCE"}


def alarms() -> str:
    """A section for each alarm: severity, meaning, and action."""
    groups = yaml.safe_load(ALARMS.read_text("utf-8"))["groups"]
    return "\n\n".join(_alarm(rule) for group in groups for rule in group["rules"])


def _alarm(rule: Mapping[str, Any]) -> str:
    text = rule["annotations"]
    after = f", after {rule['for'].replace('m', ' min').replace('h', ' h')}" if "for" in rule else ""
    means = f"*{rule['labels']['severity'].capitalize()}{after}.* {text['description']}"
    paragraphs = (f"### {rule['alert']}", means, f"**Do:** {_LABEL.sub(_placeholder, text['action'])}")
    return "\n\n".join(map(_filled, paragraphs))


def _filled(paragraph: str) -> str:
    """The paragraph wrapped without breaking code spans."""
    whole = _CODE.sub(lambda code: code[0].replace(" ", _KEPT_SPACE), paragraph)
    lines = fill(whole, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return lines.replace(_KEPT_SPACE, " ")


def _placeholder(label: re.Match[str]) -> str:
    return _PLACEHOLDERS[label[1]]


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "configuration": configuration,
    "process metrics": process_metrics,
    "store metrics": store_metrics,
    "alarms": alarms,
}


if __name__ == "__main__":
    for name, made in TABLES.items():
        write_table(name, made())
