"""The Lua scripts: the only way in which a feed's keys are written.

Their text is in ``lua/*.lua``; each file begins with what it does, its KEYS, its ARGV and what it answers.

**Invariants**

- Checks come first, then writes that do not fail: Redis does not roll a script back.
- Scripts move and compare bytes, no more. Events are encoded and snapshots packed before: Lua would damage large
  integers and empty arrays.
- Fencing compares a random nonce, not a counter: a counter kept in the same Redis, replicated asynchronously, may
  repeat after a failover.
- A script is sent again only while the lease that it checks may last: after that another process may have it.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final, cast

# Servers from 7.0 on know the shebang. With it, one that is out of memory refuses the script before its first write.
SHEBANG: Final = "#!lua\n"

LONGEST_LEASE_MS: Final = 600_000
"""No configuration allows a longer lease. One that lasts longer was taken before the server's clock was set back."""

_HEAD: Final = re.compile(r"(?:--.*\n)*")
_INCLUDED: Final = re.compile(r"^-- include (\w+)$", re.MULTILINE)


def lua(name: str) -> str:
    """The script ``lua/NAME.lua`` without its head, after the parts that it includes."""
    text = files("poller.store").joinpath("lua", f"{name}.lua").read_text("utf-8")
    head = cast("re.Match[str]", _HEAD.match(text))[0]
    parts = [lua(part) for part in _INCLUDED.findall(head)]
    return "\n".join([*parts, text[len(head) :].replace("LONGEST_LEASE_MS", str(LONGEST_LEASE_MS))])


ORDER: Final = lua("request_order")

DROP: Final = lua("drop_quarantined")

COMMIT: Final = lua("commit")


def in_any_case(shebang: str) -> str:
    """The first line of a script that a server runs although it is out of memory.

    For scripts that keep a lease or lead to freeing memory: without them no memory would ever be freed. A commit and
    the beginning of a round do not count among them.

    Args:
        shebang: the first line of the others; empty where the server does not know it.
    """
    return shebang and f"{shebang.rstrip()} flags=allow-oom\n"
