"""The server configured as in ``deploy/redis``: writes that it acknowledged survive a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis

from tests.acl import running_with_acl
from tests.harness.waiting import blocking_until
from tests.servers import KINDS, Kind

_TWO = "redis.call('SET', KEYS[1], '1') redis.call('SET', KEYS[2], '1') return 1"


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_is_kept_through_a_restart(kind: Kind, tmp_path: Path) -> None:
    """Writes of a script survive a restart, though some versions replay the file as user "default" under its ACL."""
    for _ in range(2):
        with running_with_acl(kind, tmp_path / "v") as server, Redis.from_url(server.url) as client:
            if client.exists("poller:plain"):
                break
            client.set("poller:plain", "1")
            client.eval(_TWO, 2, "poller:{a}:one", "poller:{a}:two")
            blocking_until(lambda: _is_written(tmp_path / "v", b"poller:{a}:two"), "the append-only file to have it")
    else:
        raise AssertionError("not restarted on its files")
    with running_with_acl(kind, tmp_path / "v") as server, Redis.from_url(server.url) as client:
        assert client.exists("poller:plain", "poller:{a}:one", "poller:{a}:two") == 3


def _is_written(directory: Path, name: bytes) -> bool:
    """Whether an append-only file names this key: a write waits for an fsync under way, while its reply does not."""
    return any(name in file.read_bytes() for file in directory.rglob("*.aof"))
