"""Laws of webhook requests, verified with the npm packages that receivers use: CloudEvents, Standard Webhooks, Svix.

Without these packages the tests are skipped, see :mod:`tests.node`.
"""

from __future__ import annotations

import json
import subprocess
import time
from base64 import b64decode, urlsafe_b64encode
from typing import Any, Final
from urllib.parse import unquote

import pytest

from poller.delivery.cloudevent import Mode, RequestForm
from poller.delivery.signing import Signer, new_secret, public_key
from tests.delivery.events import entry, pair
from tests.delivery.test_signing import SVIX_SECRET
from tests.node import needs_node

SECRETS: Final = [new_secret(b"k" * 24), SVIX_SECRET, new_secret(b"l" * 64)]

# Reads {request, secret, public, id}; prints what each package made of it, or ends with its error.
RECEIVER: Final = """
const { HTTP } = require("cloudevents");
const standard = require("standardwebhooks");
const svix = require("svix");
const crypto = require("node:crypto");
const given = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
const headers = Object.fromEntries(Object.entries(given.headers).map(([name, text]) => [name.toLowerCase(), text]));
new standard.Webhook(given.secret).verify(given.body, headers);
new svix.Webhook(given.secret).verify(given.body, headers);
const key = crypto.createPublicKey(
  { key: { kty: "OKP", crv: "Ed25519", x: given.public }, format: "jwk" });
const signed = Buffer.from(`${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${given.body}`);
const proof = headers["webhook-signature"].split(" ").find((part) => part.startsWith("v1a,")).slice(4);
if (!crypto.verify(null, signed, key, Buffer.from(proof, "base64"))) throw new Error("v1a does not verify");
const read = HTTP.toEvent({ headers, body: given.body });
const events = (Array.isArray(read) ? read : [read]).map((event) => { event.validate(); return event.toJSON(); });
console.log(JSON.stringify(events));
"""


pytestmark = needs_node("cloudevents", "standardwebhooks", "svix")


@pytest.mark.parametrize("mode", ["structured", "binary", "batch"])
def test_the_packages_of_receivers_take_every_kind_of_request(mode: Mode) -> None:
    """The npm packages verify both kinds of signature and read the events."""
    entries = [entry(b'{"id":"K","name":"caf\xc3\xa9"}', key=key) for key in ("K", 'a "b" %é')]
    entries = entries if mode == "batch" else entries[1:]
    form = RequestForm(mode, signer=Signer(SECRETS), user_agent="poller/1")
    sent = form.request([pair(one) for one in entries], timestamp=int(time.time()))
    public = b64decode(public_key(SVIX_SECRET).removeprefix("whpk_"))
    for secret in (SECRETS[0], SECRETS[2]):
        question = {"headers": dict(sent.headers), "body": sent.body.decode(), "secret": secret, "public": _jwk(public)}
        done = subprocess.run(
            ["node", "-e", RECEIVER], input=json.dumps(question), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        read = [_told(event, encoded=mode == "binary") for event in json.loads(done.stdout)]
        assert read == [_told(json.loads(one)) for one in entries]


def _jwk(key: bytes) -> str:
    """Base64url without padding, as in JSON Web Keys."""
    return urlsafe_b64encode(key).decode().rstrip("=")


def _told(event: dict[str, Any], *, encoded: bool = False) -> dict[str, Any]:
    """The event in a comparable form: the package rewrites the time, and leaves headers percent-encoded."""
    attributes = {name: unquote(value) if encoded else value for name, value in event.items() if name != "data"}
    return attributes | {"time": None, "data": event["data"]}
