"""The server as ``deploy/redis`` has it: what it acknowledged is there after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis

from tests.acl import running_with_acl
from tests.servers import KINDS, Kind

_TWO = "redis.call('SET', KEYS[1], '1') redis.call('SET', KEYS[2], '1') return 1"


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_is_kept_through_a_restart(kind: Kind, tmp_path: Path) -> None:
    """Some versions read their append-only file as the user "default", and drop what that one may not do."""
    for _ in range(2):
        with running_with_acl(kind, tmp_path / "v") as server, Redis.from_url(server.url) as client:
            if client.exists("poller:plain"):
                break
            client.set("poller:plain", "1")
            client.eval(_TWO, 2, "poller:{a}:one", "poller:{a}:two")
    else:
        raise AssertionError("not restarted on its files")
    with running_with_acl(kind, tmp_path / "v") as server, Redis.from_url(server.url) as client:
        assert client.exists("poller:plain", "poller:{a}:one", "poller:{a}:two") == 3
