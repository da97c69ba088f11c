"""Laws of the receiver: it verifies by Standard Webhooks, and ends with its input."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from poller.delivery.signing import Signer, new_secret
from poller.sandbox import receiver
from poller.sandbox.receiver import TOLERANCE, objection
from tests.harness.waiting import strain

SECRET = new_secret(b"k" * 32)
OTHER = new_secret(b"o" * 32)
BODY = b'{"specversion":"1.0"}'
NOW = 1_750_000_000


def signed(body: bytes, at: int, *secrets: str) -> dict[str, str]:
    signature = Signer(secrets).headers("a-1", at, body)["webhook-signature"]
    return {"webhook-id": "a-1", "webhook-timestamp": str(at), "webhook-signature": signature}


@pytest.mark.parametrize(
    ("headers", "body", "says"),
    [
        (signed(BODY, NOW, SECRET), BODY, None),
        (signed(BODY, NOW, OTHER, SECRET), BODY, None),
        (signed(BODY, NOW, OTHER), BODY, "another's"),
        (signed(BODY, NOW, SECRET), BODY + b" ", "another's"),
        (signed(BODY, NOW, SECRET) | {"webhook-id": "a-2"}, BODY, "another's"),
        (signed(BODY, NOW - int(TOLERANCE) - 1, SECRET), BODY, "another time"),
        (signed(BODY, NOW, SECRET) | {"webhook-timestamp": "soon"}, BODY, "not signed"),
        ({}, BODY, "not signed"),
    ],
)
def test_objection(headers: dict[str, str], body: bytes, says: str | None) -> None:
    """One valid signature among several is enough; a wrong secret, body, id or time is an objection."""
    found = objection(SECRET, headers, body, now=NOW)
    assert found is None if says is None else says in (found or "")


@contextmanager
def started(secret_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-I", receiver.__file__, str(secret_file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_program(tmp_path: Path) -> None:
    """The receiver prints a verified event, answers 401 to a wrong signature, and ends when its input closes."""
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n", "utf-8")
    with started(file) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().decode().strip()).netloc
        connection = http.client.HTTPConnection(address, timeout=20 * strain())
        statuses = []
        for secret in (SECRET, OTHER):
            connection.request("POST", "/hooks", BODY, signed(BODY, int(time.time()), secret))
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        connection.close()
        assert statuses == [200, 401]
        good, bad = (json.loads(process.stdout.readline()) for _ in range(2))
        assert (good["event"], good["refused"]) == (json.loads(BODY), None)
        assert (bad["event"], bad["refused"]) == (None, "its signature is another's")
        process.stdin.close()
        assert process.wait(20 * strain()) == 0
