"""Event sources: which of them the feeds of a configuration have, and whether a subscription waits for another.

**Invariants**

- The source of a feed's events is ``event_source`` of its source and the path of its list; ``{id}`` in it stands for
  any one qualification.
- Only an ``exact`` source that has to hold is looked at: an entry of ``filters``, or of an ``all`` in it.
- Case counts.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from poller.config.problems import Key

PATHS: Final = {
    "evidenceVariants": "/evidenceVariants",
    "employmentUnavailabilities": "/employmentUnavailabilities",
    "contractTypes": "/contractTypes",
    "achievements": "/qualifications/{id}/achievements",
}
"""Where the known resources are listed, below ``base_url``."""

_COMPARED: Final = 500  # sources that a wrong one is compared with
_NAMED: Final = 4
_ID: Final = re.escape("{id}")


def event_source(prefix: str, resource: str, path: str | None) -> str:
    """The source of a feed's events, with ``{id}`` where there is one listing for each qualification.

    Args:
        prefix: ``event_source`` of its source.
        resource: of the feed.
        path: as configured; None for the default.
    """
    return prefix + (path or PATHS.get(resource, ""))


def required_sources(filters: Any) -> Iterator[tuple[Key, str]]:
    """Each source that events must have to pass these filters, right or wrong in shape, by its place among them."""
    tables: list[tuple[Key, Any]] = [((), filters)]
    while tables:
        key, several = tables.pop()
        for place, one in enumerate(several if isinstance(several, list | tuple) else ()):
            if not isinstance(one, Mapping):
                continue
            compared = one.get("exact")
            source = compared.get("source") if isinstance(compared, Mapping) else None
            if isinstance(source, str) and source:
                yield (*key, place, "exact", "source"), source
            tables.append(((*key, place, "all"), one.get("all")))


def unknown_source(wanted: str, sources: Collection[str]) -> str | None:
    """What is expected in the place of a source that no event has; None where one of ``sources`` is it."""
    if wanted in sources or any(_form(one).fullmatch(wanted) for one in sources if "{id}" in one):
        return None
    known = sorted(sources)
    close = get_close_matches(wanted, known[:_COMPARED], n=1, cutoff=0.6)
    more = ", …" if len(known) > _NAMED else ""
    hint = f'did you mean "{close[0]}"?' if close else f"there are {', '.join(known[:_NAMED])}{more}"
    return f"expected the source of a feed's events; {hint}"


def _form(source: str) -> re.Pattern[str]:
    return re.compile(re.escape(source).replace(_ID, "[^/]+"))
