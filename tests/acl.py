"""A server with the configuration and the users of ``deploy/redis``, as an operator would run it."""

from __future__ import annotations

import hashlib
import re
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.servers import Kind, binary, free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from redis.asyncio import Redis

DEPLOYED: Final = Path(__file__).parents[1] / "deploy" / "redis"
PASSWORD: Final = "a password: of /tests@ alone"  # noqa: S105 -- of no use anywhere
_READ_PATTERNS_SINCE: Final = 7  # the major version of Redis
_SPELLED: Final = "a%20password%3A%20of%20%2Ftests%40%20alone"


@dataclass(frozen=True, slots=True)
class Guarded:
    """A running server with users.

    Attributes:
        url: for the user ``poller``.
        reader: for the user ``reader``.
        admin: for the user with all rights.
    """

    url: str
    reader: str
    admin: str


@contextmanager
def running_with_acl(kind: Kind, directory: Path, *, tls: Mapping[str, Path] | None = None) -> Iterator[Guarded]:
    """A server on a loopback port for the duration of the ``with``.

    Args:
        kind: the kind of server.
        directory: made if missing; the server's files and its configuration are there.
        tls: the files ``cert``, ``key`` and ``ca``; with them the configuration's TLS lines apply, and TLS is required.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    text = (DEPLOYED / "redis.conf").read_text("utf-8")
    place = {"port": f"{port}"}
    if tls is not None:
        text = re.sub(r"^# (tls-|port 0)", r"\1", text, flags=re.MULTILINE)
        place = {"port": "0", "tls-port": f"{port}"} | {
            name: str(tls[key])
            for name, key in (("tls-cert-file", "cert"), ("tls-key-file", "key"), ("tls-ca-cert-file", "ca"))
        }
    users = _with_passwords((DEPLOYED / "users.acl").read_text("utf-8"))
    (directory / "users.acl").write_text(users if knows_read_patterns(kind) else users.replace("%R~", "~"))
    (directory / "deployed.conf").write_text(text, "utf-8")
    place |= {"dir": str(directory), "bind": "127.0.0.1", "aclfile": str(directory / "users.acl")}
    lines = [f"include {directory}/deployed.conf", *(f'{name} "{value}"' for name, value in place.items())]
    (directory / "test.conf").write_text("\n".join(lines) + "\n", "utf-8")
    scheme, query = ("redis", "") if tls is None else ("rediss", f"?ssl_ca_certs={tls['ca']}")
    with running(kind, directory, tcp=True, options={"include": str(directory / "test.conf")}):
        urls = (f"{scheme}://{user}:{_SPELLED}@127.0.0.1:{port}/1{query}" for user in ("poller", "reader", "admin"))
        yield Guarded(*urls)


def knows_read_patterns(kind: Kind) -> bool:
    """Whether the server knows ``%R~``, keys that may be read and not written: from Redis 7.0 on."""
    said = subprocess.run([binary(kind), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\d+)\.", said)
    assert found, said
    return int(found[1]) >= _READ_PATTERNS_SINCE


def _with_passwords(users: str) -> str:
    digest = hashlib.sha256(PASSWORD.encode()).hexdigest()
    return re.sub(r"^(user \w+ on)\b", rf"\1 #{digest}", users, flags=re.MULTILINE)


async def set_user(admin: Redis, *rules: str) -> None:
    """Add rules to those of the user ``poller``."""
    await admin.execute_command("ACL", "SETUSER", "poller", *rules)  # type: ignore[no-untyped-call] # redis-py's
