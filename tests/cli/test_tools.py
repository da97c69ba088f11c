"""``poller sandbox``, ``config`` and ``keys``."""

from __future__ import annotations

import json
import re
import socket
import time
from base64 import b64decode
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks import Webhook

from poller.config.load import load
from poller.delivery.signing import Signer, new_secret, public_keys
from poller.sandbox.faults.registry import PROFILES
from poller.text import SIGNING_SECRETS
from tests.cli.conftest import Called, Poller, started
from tests.harness.waiting import PATIENCE, strain


async def test_profiles_are_listed(poller: Poller) -> None:
    """``--list`` prints each profile, its kind and its line, in the table's order; ``--json`` the same as objects."""
    plain, lines = await poller("sandbox", "--list"), await poller("sandbox", "--list", "--json")
    assert (plain.code, plain.err, lines.code, lines.err) == (0, "", 0, "")
    table = [(profile.name, profile.kind.value, profile.does) for profile in PROFILES.values()]
    assert [tuple(re.split(r" {2,}", line, maxsplit=2)) for line in plain.out.splitlines()[1:]] == table
    assert [json.loads(line) for line in lines.out.splitlines()] == [
        {"name": name, "kind": kind, "does": does} for name, kind, does in table
    ]


async def test_a_port_in_use_is_reported_with_the_remedy(poller: Poller) -> None:
    """The message names the address and the option for another port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        ended = await poller("sandbox", "--port", str(other.getsockname()[1]))
    assert (ended.code, "cannot listen on 127.0.0.1" in ended.err, "--port 0" in ended.err) == (2, True, True)


async def test_profiles_and_faults_are_applied(tmp_path: Path) -> None:
    """The served API follows the profiles that are named, repeated or with commas; faults occur as often as given."""
    options = ("--profile", "end-null,delta-none", "--profile=bom@evidenceVariants", "--faults", "status-502=2")
    async with started("sandbox", "--port=0", "--changes-per-second=0", *options, cwd=tmp_path) as process:
        assert process.stdout is not None
        told = re.search(rb"http://\S+", await process.stdout.readline())
        assert told is not None
        headers = {"authorization": "Bearer sandbox"}
        async with httpx.AsyncClient(
            base_url=told[0].decode(), headers=headers, trust_env=False, timeout=PATIENCE * strain()
        ) as client:
            said = [await client.get("/contractTypes", params={"limit": 5000}) for _ in range(3)]
            marked = await client.get("/evidenceVariants")
    assert [answer.status_code for answer in said] == [502, 502, 200]
    page = said[2].json()
    assert (page["pageToken"], "deltaToken" in page) == (None, False)
    assert marked.content.startswith(b"\xef\xbb\xbf")
    assert b'"deltaToken"' not in marked.content


def test_the_example_can_be_used(called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example loads as it is, and a broken poller.toml in the directory does not matter."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "poller.toml").write_text("this is no TOML", "utf-8")
    ended = called("config", "example")
    assert (ended.code, ended.err) == (0, "")
    file = tmp_path / "example.toml"
    file.write_text(ended.out, "utf-8")
    assert load(file, {}).feed_ids[0] == "acme/employmentUnavailabilities"


def test_the_example_is_the_file_of_the_package(called: Called) -> None:
    """The example is printed byte for byte, with its comments."""
    packaged = Path(__file__).parents[2] / "poller" / "config" / "example.toml"
    assert called("config", "example").out == packaged.read_text("utf-8")


def made(called: Called, *options: str) -> tuple[str, str]:
    ended = called("keys", "new", *options)
    assert (ended.code, ended.err) == (0, "")
    lines = [line.split() for line in ended.out.splitlines()]
    assert [line[0] for line in lines[:2]] == ["secret", "receiver"]
    return lines[0][1], lines[1][1]


def test_a_shared_secret(called: Called) -> None:
    """The receiver's library verifies signatures with the secret; no two secrets are the same."""
    secret, receiver = made(called)
    assert secret.startswith("whsec_")
    now = int(time.time())
    signature = Signer([secret]).headers("1", now, b"{}")["webhook-signature"]
    headers = {"webhook-id": "1", "webhook-timestamp": str(now), "webhook-signature": signature}
    assert Webhook(receiver).verify(b"{}", headers) == {}
    assert made(called)[0] != secret


def test_a_key_pair(called: Called) -> None:
    """The receiver's line is the public key, which verifies signatures."""
    secret, receiver = made(called, "--ed25519")
    assert (secret[:5], receiver[:5]) == ("whsk_", "whpk_")
    version, _, signature = Signer([secret]).headers("1", 1772439303, b"{}")["webhook-signature"].partition(",")
    assert version == "v1a"
    public = Ed25519PublicKey.from_public_bytes(b64decode(receiver.removeprefix("whpk_")))
    public.verify(b64decode(signature), b"1.1772439303.{}")
    assert b64decode(secret.removeprefix("whsk_"))[32:] == b64decode(receiver.removeprefix("whpk_"))
    assert public_keys([secret, "whsec_" + "A" * 32, "nonsense"]) == (receiver,)


@pytest.mark.parametrize("name", [*SIGNING_SECRETS.values(), *map(str.upper, SIGNING_SECRETS.values())])
def test_a_secret_of_each_scheme(called: Called, name: str) -> None:
    """A secret of each scheme that signs can be made by the scheme's name, in any case."""
    prefix = {scheme.upper(): prefix for prefix, scheme in SIGNING_SECRETS.items()}[name.upper()]
    assert made(called, "--scheme", name)[0].startswith(prefix)


def test_a_secret_is_written_to_a_new_file(called: Called, tmp_path: Path) -> None:
    """``--output`` writes the secret alone to a file of mode 600 and does not show it; an existing file stays."""
    file = tmp_path / "secret"
    ended = called("keys", "new", "--output", str(file))
    assert (ended.code, ended.err) == (0, "")
    assert re.fullmatch(r"whsec_\S+\n", file.read_text("utf-8"))
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text("utf-8").strip() not in ended.out
    kept = file.read_bytes()
    refused = called("keys", "new", "--ed25519", "--output", str(file))
    assert (refused.code, refused.out, "exists already" in refused.err) == (2, "", True)
    assert file.read_bytes() == kept
    nowhere = called("keys", "new", "--output", str(tmp_path / "no" / "secret"))
    assert (nowhere.code, "cannot be written: No such file" in nowhere.err) == (2, True)
    pair = tmp_path / "pair"
    shown = called("keys", "new", "--ed25519", "--output", str(pair))
    (public,) = public_keys([pair.read_text("utf-8").strip()])
    assert f"receiver  {public}\n" in shown.out


def test_another_scheme_is_refused(called: Called) -> None:
    """An unknown scheme is a usage error."""
    ended = called("keys", "new", "--scheme", "sha1")
    assert ended.code == 2
    assert "expected HMAC or ed25519" in ended.err
    both = called("keys", "new", "--ed25519", "--scheme", "HMAC")
    assert (both.code, "contradict each other" in both.err) == (2, True)


def test_a_seed_has_its_size() -> None:
    """A seed of another length is refused."""
    with pytest.raises(ValueError, match="32"):
        new_secret(b"short", "ed25519")
