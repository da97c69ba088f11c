"""A receiver of webhooks that verifies and reports each request before it answers.

``python poller/sandbox/receiver.py SECRET_FILE`` prints the URL that it listens on, then a line of JSON for each
request: when it came, and the event, or why it was refused. It ends when its standard input does, so it never
outlives the process that started it.

**Invariants**

- 200 is sent after the event was reported, so what was acknowledged is in the report. A request whose signature does
  not verify gets 401, and its content goes nowhere.
- Only the standard library is imported: it proves what any receiver could prove.
"""

from __future__ import annotations

import hmac
import json
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any, BinaryIO, Final

TOLERANCE: Final = 300.0
"""The most seconds that a request may be old or early."""

_PREFIX: Final = "whsec_"
_IDLE: Final = 60.0  # seconds without a request after which a connection is closed


def objection(secret: str, headers: Mapping[str, str], body: bytes, *, now: float) -> str | None:
    """Why a request is refused (Standard Webhooks); None: its signature verifies.

    Args:
        secret: ``whsec_`` and base64.
        headers: names in lower case.
        body: as it was received.
        now: seconds since 1970.
    """
    try:
        identity, sent, signatures = (headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
        age = abs(now - int(sent))
    except (KeyError, ValueError):
        return "it is not signed"
    if age > TOLERANCE:
        return "it was signed at another time"
    signed = b"%b.%b.%b" % (identity.encode(), sent.encode(), body)
    expected = b"v1," + b64encode(hmac.digest(b64decode(secret.strip().removeprefix(_PREFIX)), signed, "sha256"))
    if not any(hmac.compare_digest(expected, signature.encode()) for signature in signatures.split(" ")):
        return "its signature is another's"
    return None


class _ReceiverConnection(BaseHTTPRequestHandler):
    """One connection, request after request."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE

    def __init__(self, secret: str, reports: BinaryIO, *connection: Any) -> None:
        self._secret = secret
        self._reports = reports
        super().__init__(*connection)

    def do_POST(self) -> None:
        """Verify, report, answer."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): text for name, text in self.headers.items()}
        refused = objection(self._secret, headers, body, now=time.time())
        event = None if refused else json.loads(body)
        report = {"at": datetime.now(UTC).isoformat(), "event": event, "refused": refused}
        self._reports.write(json.dumps(report).encode() + b"\n")  # written whole: the stream has no buffer
        self.send_response(401 if refused else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing: the report says it."""


class _QuietServer(ThreadingHTTPServer):
    """A server that logs nothing about connections that clients close."""

    def handle_error(self, *_: object) -> None:
        """Ignore broken connections: a request without an answer is sent again."""


def serve(secret: str, reports: BinaryIO) -> BaseServer:
    """Listen on a loopback port; the first line of the reports is the URL.

    Args:
        secret: with which requests are signed.
        reports: the file for the lines; unbuffered, so that each write is one line.
    """
    server = _QuietServer(("127.0.0.1", 0), partial(_ReceiverConnection, secret, reports))
    reports.write(f"http://127.0.0.1:{server.server_port}\n".encode())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main(secret_file: str) -> None:
    """Receive until standard input ends."""
    with open(1, "wb", buffering=0, closefd=False) as reports:
        server = serve(Path(secret_file).read_text("utf-8"), reports)
        sys.stdin.buffer.read()
        server.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
