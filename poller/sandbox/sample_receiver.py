"""A receiver of webhooks: verifies, prints one line an event, drops repeats.

``python receiver.py [PORT]`` listens on 127.0.0.1, port 8000 by default. The signing secret is in the file ``secret``
beside it. Ctrl-C ends it.
"""

from __future__ import annotations

import base64
import hmac
import json
import sys
import time
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SECRET = Path(__file__).with_name("secret")
TOLERANCE = 300  # seconds that a request may be old or early

seen: set[str] = set()  # a real receiver keeps the ids, or the last revision of each record, with what it does


def is_genuine(headers: Message, body: bytes) -> bool:
    """Whether the signature (Standard Webhooks) is of this secret, and recent."""
    key = base64.b64decode(SECRET.read_text("utf-8").strip().removeprefix("whsec_"))
    sent = headers.get("webhook-timestamp", "")
    if not sent.isdigit() or abs(time.time() - int(sent)) > TOLERANCE:
        return False
    signed = f"{headers['webhook-id']}.{sent}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    signatures = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(expected.encode(), signature.encode()) for signature in signatures)


class SampleReceiver(BaseHTTPRequestHandler):
    """One connection, request after request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Verify, do the work, then answer 204: the event is safe here."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not is_genuine(self.headers, body):
            self.send_error(401)
            return
        event = json.loads(body)
        if event["id"] not in seen:
            data = event["data"]
            # One write for the whole line: several threads share the screen.
            sys.stdout.write(f"{event['type']} {event['subject']} {data.get('revision', '-')}\n")
            sys.stdout.flush()
            seen.add(event["id"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print events and not requests."""


def main() -> None:
    """Receive until Ctrl-C."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), SampleReceiver)
    except OSError as error:
        other = "receiver.py PORT takes another one, which goes into `sink` too"
        sys.exit(f"cannot listen on 127.0.0.1 port {port}: {error.strerror}; {other}")
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
