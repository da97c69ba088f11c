"""Debian's NATS server with JetStream, and credentials as ``nsc`` makes them."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from base64 import b32encode, urlsafe_b64encode
from binascii import crc_hqx
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from secrets import token_bytes
from typing import Any, Final

import nats
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.js import JetStreamContext

from tests.harness.waiting import blocking_until
from tests.servers import free_port

SUBJECT: Final = "hr.events"


class NatsServer:
    """One server; :meth:`kill` and :meth:`start` may be called repeatedly, its streams are kept on disk."""

    def __init__(self, directory: Path, config: str = "", *, jetstream: bool = True) -> None:
        program = shutil.which("nats-server", path="/usr/sbin:/usr/local/bin:/usr/bin")
        if program is None:
            pytest.skip("nats-server is not installed")
        self.port = free_port()
        self.log = directory / "nats.log"
        self._file = directory / "nats.conf"
        kept = f'jetstream {{ store_dir: "{directory}" }}\n' if jetstream else ""
        self._file.write_text(f'host: "127.0.0.1"\nport: {self.port}\n{kept}{config}\n')
        self._command = (program, "-c", str(self._file))
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, scheme: str = "nats", subject: str = SUBJECT) -> str:
        return f"{scheme}://127.0.0.1:{self.port}/{subject}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            log.truncate(0)
            self._process = subprocess.Popen(self._command, stderr=log, stdout=log)
        process = self._process

        def is_ready() -> bool:
            assert process.poll() is None, self.log.read_text()
            return b"Server is ready" in self.log.read_bytes()

        blocking_until(is_ready, "the NATS server to be ready")

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()


@contextmanager
def nats_server(directory: Path, config: str = "", *, jetstream: bool = True) -> Iterator[NatsServer]:
    """A server that runs while the block does."""
    server = NatsServer(directory, config, jetstream=jetstream)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def administered(server: NatsServer, **login: Any) -> AsyncIterator[JetStreamContext]:
    """JetStream as an operator uses it."""
    client = await nats.connect(f"nats://127.0.0.1:{server.port}", **login)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def messages(stream: JetStreamContext, name: str = "S") -> list[tuple[str, dict[str, Any]]]:
    """All messages of a stream: their ids and the events in them."""
    state = (await stream.stream_info(name)).state
    if not state.messages:
        return []
    found = [await stream.get_msg(name, number) for number in range(state.first_seq, state.last_seq + 1)]
    return [((one.headers or {})["Nats-Msg-Id"], json.loads(one.data or b"")) for one in found]


class Nkey:
    """A key pair in the format of NATS."""

    def __init__(self, kind: int) -> None:
        raw = token_bytes(32)
        self._key = Ed25519PrivateKey.from_private_bytes(raw)
        self.public = _spelled(bytes([kind << 3]) + self._key.public_key().public_bytes_raw())
        self.seed = _spelled(bytes([(18 << 3) | (kind >> 2), (kind << 6) & 255]) + raw)

    def sign(self, subject: Nkey, claims: Mapping[str, Any], name: str) -> str:
        """A JWT by this key on another one."""
        body = {"jti": "t", "iat": int(time.time()), "iss": self.public, "name": name, "sub": subject.public}
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, body | {"nats": claims}]
        text = b".".join(urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
        return (text + b"." + urlsafe_b64encode(self._key.sign(text)).rstrip(b"=")).decode()


def _spelled(raw: bytes) -> str:
    return b32encode(raw + crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def credentials(directory: Path) -> tuple[str, Path]:
    """The configuration of a server with an operator, and the credentials file of a user."""
    operator, system, account, user = Nkey(14), Nkey(0), Nkey(0), Nkey(20)
    anything = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True}
    limits = anything | {"conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    kind = {"version": 2}
    of_operator = operator.sign(operator, kind | {"type": "operator", "system_account": system.public}, "operator")
    of_system = operator.sign(system, kind | {"type": "account", "limits": anything | {"conn": -1, "leaf": -1}}, "SYS")
    of_account = operator.sign(account, kind | {"type": "account", "limits": limits}, "A")
    of_user = account.sign(user, kind | {"type": "user", "subs": -1, "data": -1, "payload": -1}, "poller")
    file = directory / "poller.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    file.chmod(0o600)
    preload = f"{{ {system.public}: {of_system}, {account.public}: {of_account} }}"
    config = f"operator: {of_operator}\nsystem_account: {system.public}\nresolver: MEMORY\n"
    return f"{config}resolver_preload: {preload}\n", file
