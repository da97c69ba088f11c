"""Tables of the documents that are generated from the code, and compared with it by tests/test_documents.py.

``python -m tests.document_tables`` writes each of them between its two comments. Do not edit them by hand: correct the
description in the code and run it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from poller.config.settings import config_schema
from tests.documents import write_table

_DEFAULT: Final = re.compile(r" Default: (.*)\.$")
_AUTH_ONCE: Final = "sources[].auth."
"""A sink's credential has the same kinds; they are told of once."""


def configuration() -> str:
    """A table of every key of ``poller.toml``: where it stands, its default and what it means."""
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
    """The table that stands under a key; None where a value does."""
    reference = key.get("$ref") or key.get("items", {}).get("$ref")
    return None if reference is None else tables[reference.rpartition("/")[2]]


def _told(description: str, *, required: bool) -> tuple[str, str]:
    """Default and meaning."""
    found = _DEFAULT.search(description)
    text = (description[: found.start()] if found else description).removesuffix(".")
    return ("required" if required else found[1] if found else "", text.replace("|", "\\|"))


TABLES: Final[Mapping[str, Callable[[], str]]] = {"configuration": configuration}


if __name__ == "__main__":
    for name, made in TABLES.items():
        write_table(name, made())
