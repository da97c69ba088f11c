"""Keys that stand twice in an object of a JSON text, which most readers pass over without a word.

**Invariants**

- Of what a person or a program has written, nothing is dropped silently: whoever takes it refuses such a text.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from poller.config.problems import Key


class _Pairs(list[tuple[str, Any]]):
    """The members of an object, the same key as often as it stands there."""


def repeated_keys(text: str | bytes) -> Iterator[Key]:
    """Where each of them stands, by its path.

    Raises:
        RecursionError: the text is nested too deep.
        ValueError: it is no JSON.
    """
    waiting: list[tuple[Key, Any]] = [((), json.loads(text, object_pairs_hook=_Pairs))]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, _Pairs):
            seen: set[str] = set()
            for name, inner in value:
                if name in seen:
                    yield (*key, name)
                seen.add(name)
                waiting.append(((*key, name), inner))
        elif isinstance(value, list):
            waiting += [((*key, place), inner) for place, inner in enumerate(value)]
