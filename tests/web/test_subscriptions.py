"""Laws of ``/subscriptions``: the subscriptions of the command line under the same rules, without secrets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from poller.config.event_choice import CAUSES
from poller.config.subscriptions import FieldsSettings, WhenSettings
from poller.config.validation import decode_subscription, encode_subscription, subscription_of
from poller.control import subscriptions as subscribing
from poller.control.subscriptions import filed, registry_of
from poller.delivery.cloudevent import envelope_of
from poller.delivery.filters import compile_filters
from poller.delivery.signing import new_secret, public_key
from poller.errors import StoreUnavailable
from poller.store.keys import FeedKeys, SubscriptionKeys
from poller.store.registry import Registry
from poller.web.context import AppContext
from tests.harness.waiting import until
from tests.web.served import FEEDS, NOW, SINK, TOKEN, Served, configured, served

NEW: dict[str, Any] = {
    "id": "rostering",
    "sink": f"{SINK}?key=s3cret",
    "source": "https://api.example.org/contractTypes",
    "types": ["org.example.api.contractType.created.v1"],
    "filters": [{"prefix": {"subject": "7"}}],
    "config": {
        "feeds": [FEEDS[0]],
        "when": {"changed": ["/interval"], "not_cause": ["baseline"]},
        "fields": {"drop": ["/reason"]},
        "thin": True,
        "mode": "batch",
        "rate": 5.0,
        "retry": {"schedule": ["1s"]},
    },
    "protocol": "HTTP",
    "protocolsettings": {"headers": {"x-key": "s3cret"}, "method": "POST"},
}
ONE = "/subscriptions/rostering"


@pytest.fixture(autouse=True)
async def started(given: Served) -> None:
    """Register the subscriptions of the file, as a daemon does at its start."""
    await registry_of(given.settings, given.store).sync(filed(given.settings), NOW)


async def created(given: Served, **differing: Any) -> Any:
    status, headers, told = await given.ask("/subscriptions", "POST", json=NEW | differing)
    assert status == 201, told
    assert headers["location"] == f"/subscriptions/{told['id']}"
    return told


async def kept(given: Served, name: str = "rostering") -> Any:
    return decode_subscription(bytes((await registry_of(given.settings, given.store).all()).registered[name].settings))


async def test_a_new_one_is_kept_as_by_the_command_line(given: Served) -> None:
    """Every setting of a new subscription is in the registry; its generated secret is shown once."""
    told = await created(given)
    secrets = (await registry_of(given.settings, given.store).all()).secrets
    assert secrets == {"rostering": (told["signingsecret"],)}
    assert told["signingsecret"].startswith("whsec_")
    one = await kept(given)
    assert (one.sink, one.feeds, one.mode, one.rate, one.types) == (
        NEW["sink"],
        (FEEDS[0],),
        "batch",
        5.0,
        tuple(NEW["types"]),
    )
    assert [one.model_dump(exclude_none=True) for one in one.filters] == [
        {"exact": {"source": NEW["source"]}},
        {"prefix": {"subject": "7"}},
    ]
    assert one.headers == {"x-key": "s3cret"}
    assert one.fields == FieldsSettings(drop=("/reason",))
    assert one.when == WhenSettings(changed=("/interval",), not_cause=("baseline",))
    assert one.thin
    _, _, again = await given.ask(ONE)
    assert "signingsecret" not in again


async def test_nothing_secret_comes_back(given: Served) -> None:
    """No answer shows a sink's query, a header's value, or a signing secret other than the one just generated."""
    made = (await created(given))["signingsecret"]
    for path in ("/subscriptions", ONE, "/subscriptions/filed", "/", "/feeds", "/readyz"):
        _, _, told = await given.ask(path)
        assert "s3cret" not in str(told)
        assert made not in str(told)
        _, _, told = await given.ask(path, token=None)
        assert SINK not in str(told)
    _, _, told = await given.ask(ONE)
    assert told["sink"] == f"{SINK}?…"
    assert told["status"]["sink"] == "https://sink.example.org/…"
    assert told["protocolsettings"]["headers"] == {"x-key": "…"}


async def test_what_was_shown_may_be_sent_back(given: Served) -> None:
    """An object sent back as shown changes nothing; its edited members do, and hidden ones keep their values."""
    await created(given)
    before = await kept(given)
    _, _, shown = await given.ask(ONE, token=None)
    assert shown["source"] == NEW["source"]
    assert shown["filters"] == NEW["filters"]
    status, _, told = await given.ask(ONE, "PUT", json=shown)
    assert (status, told | {"sink": shown["sink"]}) == (200, shown)
    assert await kept(given) == before
    shown["config"]["rate"] = 9.0
    shown["protocolsettings"]["headers"]["x-other"] = "new"
    assert (await given.ask(ONE, "PUT", json=shown))[0] == 200
    after = await kept(given)
    assert (after.rate, after.sink) == (9.0, NEW["sink"])
    assert after.headers == {"x-key": "s3cret", "x-other": "new"}
    assert (await registry_of(given.settings, given.store).all()).secrets["rostering"]


async def test_the_path_of_a_sink_is_for_the_admin_token(given: Served) -> None:
    """Only the admin token sees a sink's path, the secret of chat webhooks; the hidden form may be sent back."""
    await created(given)
    before, shown = await kept(given), None
    for token in (None, "another-token"):
        _, _, shown = await given.ask(ONE, token=token)
        assert shown["sink"] == "https://sink.example.org/…"
        assert (await given.ask("/subscriptions", token=token))[2][1]["sink"] == "https://sink.example.org/…"
    assert (await given.ask("/subscriptions"))[2][1]["sink"] == f"{SINK}?…"
    assert shown is not None
    assert (await given.ask(ONE, "PUT", json=shown))[0] == 200
    assert await kept(given) == before
    status, _, told = await given.ask(ONE, "PUT", json=shown | {"sink": "https://sink.example.org/a/…"})
    assert (status, told["errors"][0]["key"]) == (422, "sink")


async def test_files_and_credentials_are_no_matter_of_a_request(given: Served, tmp_path: Any) -> None:
    """A request cannot name files or commands, so a token cannot read this machine; configured ones stay."""
    for key, value in (
        ("auth", {"token_file": "/etc/shadow"}),
        ("auth", {"command": ["touch", str(tmp_path / "done")]}),
        ("secret_files", ["/etc/shadow"]),
    ):
        status, _, told = await given.ask("/subscriptions", "POST", json=NEW | {"config": {key: value}})
        assert (status, told["errors"][0]["key"]) == (422, f"config.{key}")
        assert "shadow" not in str(told)
    brought = {"sinkcredential": {"accesstoken": "s3cret"}}
    assert (await given.ask("/subscriptions", "POST", json=NEW | brought))[0] == 422
    secret = tmp_path / "whsec"
    secret.write_text("whsec_" + "QUJD" * 12, "utf-8")
    secret.chmod(0o600)
    values = {"id": "rostering", "sink": SINK, "auth": {"token_env": "T"}, "secret_files": [str(secret)]}
    one = subscription_of(values, given.settings, where="x")
    await subscribing.add(registry_of(given.settings, given.store), given.settings, one, secrets=[], now=NOW)
    _, _, shown = await given.ask(ONE)
    assert shown["sinkcredential"] == {"credentialtype": "token_env"}
    assert "whsec" not in str(shown)
    assert (await given.ask(ONE, "PUT", json=shown | {"config": {"rate": 2.0}}))[0] == 200
    after = await kept(given)
    assert (after.rate, after.auth.token_env, after.secret_files) == (2.0, "T", (secret,))


async def test_the_public_key_is_shown(given: Served, tmp_path: Path) -> None:
    """The public key of an ed25519 secret is shown, and may be sent back; a missing file has none."""
    secret, other = new_secret(b"s" * 32, "ed25519"), tmp_path / "other"
    file = tmp_path / "whsk"
    for path, text in ((file, secret), (other, new_secret(b"o" * 32))):
        path.write_text(text, "utf-8")
        path.chmod(0o600)
    files = [str(file), str(other), str(tmp_path / "none")]
    one = subscription_of({"id": "rostering", "sink": SINK, "secret_files": files}, given.settings, where="x")
    await registry_of(given.settings, given.store).add("rostering", encode_subscription(one), (), NOW)
    _, _, shown = await given.ask(ONE, token=None)
    assert shown["publickeys"] == [public_key(secret)]
    assert secret not in str(shown)
    assert (await given.ask(ONE, "PUT", json=shown))[0] == 200
    assert await kept(given) == one
    file.unlink()
    assert "publickeys" not in (await given.ask(ONE))[2]


async def test_certificates_stay_as_they_were(given: Served) -> None:
    """A request cannot name certificates; configured ones stay, and do not follow the sink to another host."""
    for key in ("ca_file", "client_cert_file", "client_key_file"):
        status, _, told = await given.ask("/subscriptions", "POST", json=NEW | {"config": {key: "/etc/shadow"}})
        assert (status, told["errors"][0]["key"]) == (422, f"config.{key}")
    files = {"ca_file": "/ca.pem", "client_cert_file": "/c.pem", "client_key_file": "/k.pem"}
    one = subscription_of({"id": "rostering", "sink": SINK, **files}, given.settings, where="x")
    await subscribing.add(registry_of(given.settings, given.store), given.settings, one, secrets=[], now=NOW)
    _, _, shown = await given.ask(ONE)
    assert ".pem" not in str(shown)
    assert (await given.ask(ONE, "PUT", json=shown | {"config": {"rate": 2.0}}))[0] == 200
    after = await kept(given)
    assert (after.ca_file, after.client_cert_file, after.client_key_file) == tuple(map(Path, files.values()))
    status, _, told = await given.ask(ONE, "PUT", json={"sink": "https://evil.example/"})
    assert (status, told["errors"][0]["key"]) == (422, "sink")


async def test_what_is_hidden_goes_to_no_other_host(given: Served) -> None:
    """Hidden headers and credentials do not follow the sink to another host unless they are sent again."""
    await created(given)
    _, _, shown = await given.ask(ONE)
    for sink in ("https://evil.example/hook", "https://sink.example.org:8443/hook", "http://sink.example.org/hook"):
        status, _, told = await given.ask(ONE, "PUT", json=shown | {"sink": sink})
        assert (status, told["errors"][0]["key"]) == (422, "sink")
    assert (await kept(given)).sink == NEW["sink"]
    moved = shown | {"sink": f"{SINK}/elsewhere"}
    assert (await given.ask(ONE, "PUT", json=moved))[0] == 200
    anew = shown | {"sink": "https://another.example/", "protocolsettings": {"headers": {"x-key": "new"}}}
    assert (await given.ask(ONE, "PUT", json=anew))[0] == 200
    values = {"id": "signed", "sink": SINK, "auth": {"token_env": "T"}}
    one = subscription_of(values, given.settings, where="x")
    await subscribing.add(registry_of(given.settings, given.store), given.settings, one, secrets=[], now=NOW)
    assert (await given.ask("/subscriptions/signed", "PUT", json={"sink": "https://evil.example/"}))[0] == 422


UNUSABLE: Final[list[Any]] = [
    ({"sink": "ftp://x"}, "sink", '"ftp://x"'),
    ({"sink": "https://10.0.0.1/x"}, "sink", '"https://10.0.0.1/…"'),
    ({"sink": "https://u:s3cret@example.org/"}, "sink", '"https://…"'),
    ({"sink": 7}, "sink", None),
    ({"config": {"rate": -1.0}}, "config.rate", "-1.0"),
    ({"config": {"feeds": ["acme/none"]}}, "config.feeds[0]", '"acme/none"'),
    ({"config": {"retry": {"schedule": ["x"]}}}, "config.retry.schedule[0]", '"x"'),
    ({"config": {"fields": {"drop": ["reason"]}}}, "config.fields.drop[0]", '"reason"'),
    ({"config": {"fields": {"drop": ["/id"]}}}, "config.fields.drop[0]", '"/id"'),
    ({"config": {"fields": {}}}, "config.fields", None),
    ({"config": {"when": {"cause": ["whim"]}}}, "config.when.cause[0]", '"whim"'),
    ({"config": {"when": {"not_cause": list(CAUSES)}}}, "config.when", None),
    ({"filters": [{"exact": {"nosuch": "x"}}]}, "filters[0].exact.nosuch", None),
    ({"config": {"rats": 1}}, "config.rats", None),
    ({"config": {"rate": None}}, "config.rate", None),
    ({"config": {"feeds": {}}}, "config.feeds", None),
    ({"filters": [{"not": {"exact": None}}]}, "filters[0].not.exact", None),
    ({"filters": [{"like": {"type": "x"}}]}, "filters[0].like", None),
    ({"source": ""}, "source", None),
    ({"source": "https://api.example.org/contractType"}, "source", '"https://api.example.org/contractType"'),
    ({"source": None, "filters": [{"exact": {"source": "x"}}]}, "filters[0].exact.source", '"x"'),
    ({"types": ["created", "creatd"]}, "types[1]", '"creatd"'),
    ({"types": ["*.achievement.*"]}, "types[0]", '"*.achievement.*"'),
    ({"id": ""}, "id", '""'),
    ({"id": "Not An Id"}, "id", '"Not An Id"'),
    ({"protocol": "MQTT"}, "protocol", None),
    ({"protocolsettings": {"headers": {"authorization": "s3cret"}}}, "protocolsettings.headers", None),
    ({"protocolsettings": {"headers": {"x": "…"}}}, "protocolsettings.headers.x", None),
    ({"protocolsettings": {"method": "PUT"}}, "protocolsettings.method", None),
]


async def test_what_cannot_be_used_is_told(given: Served) -> None:
    """An invalid setting is reported by its key, with its value where that may be shown, and nothing is added."""
    for differing, key, value in UNUSABLE:
        status, headers, told = await given.ask("/subscriptions", "POST", json=NEW | differing)
        assert (status, headers["content-type"]) == (422, "application/problem+json")
        assert key in {one["key"] for one in told["errors"]}
        (error,) = (one for one in told["errors"] if one["key"] == key)
        assert error.get("value") == value
        assert "xpected" in error["expected"] or "unknown key" in error["expected"] or "nvalid" in error["expected"]
        assert "s3cret" not in str(told)
        assert (await given.ask(ONE))[0] == 404


TWICE: Final[list[tuple[str, str]]] = [
    ('{"sink": "https://a.example/", "id": "rostering", "sink": "https://b.example/"}', "sink"),
    ('{"sink": "https://a.example/", "id": "rostering", "config": {"rate": 1.0, "rate": 2.0}}', "config.rate"),
    ('{"sink": "https://a.example/", "id": "rostering", "filters": [{"exact": {"type": "a", "type": "b"}}]}',
     "filters[0].exact.type"),
    ('{"sink": "https://a.example/", "id": "rostering", "types": ["created"], "ty\\u0070es": ["removed"]}', "types"),
]  # fmt: skip


async def test_a_key_that_stands_twice_is_refused(given: Served) -> None:
    """A repeated key is refused by its name, at any depth and in any spelling."""
    for body, key in TWICE:
        status, _, told = await given.ask(
            "/subscriptions", "POST", data=body, headers={"content-type": "application/json"}
        )
        assert (status, told["errors"]) == (422, [{"key": key, "expected": "expected once: this key occurs twice"}])
        assert (await given.ask(ONE))[0] == 404


async def test_an_unknown_member_is_refused_by_its_name(given: Served) -> None:
    """An unknown member of the object, its protocolsettings or its config is refused, with the known ones."""
    for differing, key in (
        ({"managerid": 1}, "managerid"),
        ({"Types": []}, "Types"),
        ({"protocolsettings": {"headers": {}, "retries": 3}}, "protocolsettings.retries"),
        ({"config": {"types": ["created"]}}, "config.types"),
    ):
        status, _, told = await given.ask("/subscriptions", "POST", json=NEW | differing)
        assert (status, [one["key"] for one in told["errors"]]) == (422, [key])
        assert told["errors"][0]["expected"].startswith("unknown key")
    assert (
        "known are sink, id, source, types"
        in (await given.ask("/subscriptions", "POST", json=NEW | {"x": 1}))[2]["detail"]
    )


async def test_source_and_types_choose_events(given: Served) -> None:
    """As in the Subscriptions API, ``source`` selects exactly one source and ``types`` any of its types."""
    await created(given, filters=[], types=["*.created.v1", "removed"])
    one = await kept(given)
    wanted = compile_filters(one.types, one.filters)

    def takes(source: str, kind: str) -> bool:
        event = {"source": source, "type": f"org.example.api.contractType.{kind}.v1", "id": "1", "specversion": "1.0"}
        return wanted(envelope_of(json.dumps(event).encode()))

    assert [takes(NEW["source"], kind) for kind in ("created", "modified", "removed")] == [True, False, True]
    assert not takes("https://api.example.org/evidenceVariants", "created")


async def test_options_tells_what_is_allowed(given: Served) -> None:
    """OPTIONS answers with the methods of each path, and changes and shows nothing."""
    for path, allowed in (
        ("/subscriptions", "GET, HEAD, OPTIONS, POST"),
        ("/subscriptions/none", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("/subscriptions/filed/pause", "OPTIONS, POST"),
        ("/feeds", "GET, HEAD, OPTIONS"),
    ):
        for token in (None, TOKEN):
            status, headers, told = await given.ask(path, "OPTIONS", token=token)
            assert (status, headers["allow"], told) == (204, allowed, "")


BODIES: Final[list[Any]] = [
    (b"", "application/json", 400),
    (b"{", "application/json", 400),
    (b"[" * 60_000, "application/json", 422),
    (b'{"sink":"\xff"}', "application/json", 400),
    (b"[]", "application/json", 422),
    (b'{"sink":"https://a.example/","more":1}', "application/json", 422),
    (b'{"sink":"https://a.example/"}', "text/plain", 415),
    (b'{"filters":' + b'[{"not":' * 5000 + b"{}" + b"}]" * 5000 + b"}", "application/json", 400),
    (b'{"sink":"https://a/","filters":[' + b'{"not":' * 900 + b"{}" + b"}" * 900 + b"]}", "application/json", 422),
]


async def test_bodies_that_are_none(given: Served) -> None:
    """An empty, cut, too deep, non-UTF-8 or wrongly shaped body is a client error."""
    for body, kind, status in BODIES:
        answered, _, told = await given.ask("/subscriptions", "POST", data=body, headers={"content-type": kind})
        assert (answered, told["status"]) == (status, status)


async def test_those_of_the_file_are_changed_there(given: Served) -> None:
    """Changing a subscription of the file, even wrongly, gets 409 with the remedy; it may be paused and resumed."""
    _, _, shown = await given.ask("/subscriptions/filed")
    for method, more in (("PUT", {"json": shown}), ("PUT", {"json": {"sink": "ftp://h"}}), ("DELETE", {})):
        status, _, told = await given.ask("/subscriptions/filed", method, **more)
        assert status == 409
        assert "configuration file" in told["detail"]
    assert (await given.ask("/subscriptions", "POST", json=NEW | {"id": "filed"}))[0] == 409
    _, _, paused = await given.ask("/subscriptions/filed/pause", "POST", json={"reason": "moving house"})
    assert (paused["status"]["state"], paused["status"]["reason"]) == ("paused", "moving house")
    _, _, resumed = await given.ask("/subscriptions/filed/resume", "POST")
    assert resumed["status"]["state"] == "active"


async def test_pausing_and_resuming(given: Served) -> None:
    """A subscription is paused with or without a reason; any other body is refused."""
    await created(given)
    _, _, paused = await given.ask(f"{ONE}/pause", "POST")
    assert (paused["status"]["paused_by"], paused["status"]["reason"]) == ("operator", "by request")
    for wrong in ({"reason": 1}, {"reasons": "x"}, {"reason": "x" * 501}):
        assert (await given.ask(f"{ONE}/pause", "POST", json=wrong))[0] == 422
    assert (await given.ask(f"{ONE}/resume", "POST"))[2]["status"]["state"] == "active"


async def test_deleted_is_gone(given: Served) -> None:
    """A deleted subscription gets 404 for every request, and leaves nothing in the registry."""
    await created(given)
    assert (await given.ask(ONE, "DELETE"))[0] == 204
    found = await registry_of(given.settings, given.store).all()
    assert set(found.registered) == {"filed"}
    assert not found.secrets
    for method, path in (("GET", ONE), ("DELETE", ONE), ("POST", f"{ONE}/pause"), ("POST", f"{ONE}/resume")):
        assert (await given.ask(path, method))[0] == 404
    assert (await given.ask(ONE, "PUT", json=NEW))[0] == 404


async def test_ids(given: Served) -> None:
    """An id is generated where none is given; a taken id, or one that differs from the path, is refused."""
    anonymous = {key: value for key, value in NEW.items() if key != "id"}
    _, _, told = await given.ask("/subscriptions", "POST", json=anonymous)
    assert told["id"].startswith("s-")
    await created(given)
    assert (await given.ask("/subscriptions", "POST", json=NEW))[0] == 409
    status, _, refused = await given.ask(ONE, "PUT", json=NEW | {"id": "another"})
    assert (status, refused["errors"][0]["key"]) == (409, "id")
    _, _, found = await given.ask("/subscriptions?limit=2")
    assert [one["id"] for one in found] == ["filed", "rostering"]


async def test_one_of_another_version_is_listed_all_the_same(given: Served) -> None:
    """A subscription in an unknown format is shown as far as it is understood, and can be deleted."""
    settings = b'{"sink":"https://f.example/?s3cret","new":1}'
    await registry_of(given.settings, given.store).add("future", settings, (), NOW)
    status, _, told = await given.ask("/subscriptions/future")
    assert (status, told["sink"], told["config"]) == (200, "https://f.example/…", {})
    assert (await given.ask("/subscriptions/future", "PUT", json=NEW | {"id": "future"}))[0] == 422
    assert (await given.ask("/subscriptions/future", "DELETE"))[0] == 204


async def test_unknown_methods(given: Served) -> None:
    """An unknown method gets 405 with the methods of the path."""
    for path, allowed in (
        ("/subscriptions", {"GET", "HEAD", "POST"}),
        (ONE, {"GET", "HEAD", "PUT", "DELETE"}),
        (f"{ONE}/pause", {"POST"}),
        ("/feeds", {"GET", "HEAD"}),
        ("/", {"GET", "HEAD"}),
    ):
        status, headers, _ = await given.ask(path, "PATCH")
        assert status == 405
        assert {one.strip() for one in headers["allow"].split(",")} == allowed | {"OPTIONS"}


class Going(AppContext):
    """A store that becomes unavailable right after the registry's write, with or without the reply."""

    lost_reply = False

    @property
    def registry(self) -> Registry:
        return _Going(self)


class _Going(Registry):
    def __init__(self, backing: Going) -> None:
        super().__init__(backing.client, SubscriptionKeys.of(backing.settings.redis.prefix))
        self._backing = backing

    async def add(self, *given: Any, **more: Any) -> None:
        await super().add(*given, **more)
        self._backing._store = None
        if self._backing.lost_reply:
            raise StoreUnavailable("connection lost")


@pytest.mark.parametrize("lost_reply", [False, True])
async def test_a_secret_is_not_lost_with_the_store(tmp_path: Path, store_url: str, *, lost_reply: bool) -> None:
    """If the store fails after the write, the answer has the secret; if the reply is lost, 503 with the id."""

    def backed(*given: Any, **more: Any) -> Going:
        going = Going(*given, **more)
        going.lost_reply = lost_reply
        return going

    async with served(configured(tmp_path, store_url), backed=backed) as given:
        status, headers, told = await given.ask("/subscriptions", "POST", json=NEW)
        if lost_reply:
            assert (status, "retry-after" in headers) == (503, False)
            assert '"rostering"' in told["detail"]
        else:
            assert (status, told["id"], told["status"]["state"]) == (201, "rostering", "active")
            assert told["signingsecret"].startswith("whsec_")
            assert "s3cret" not in str(told)


async def test_a_hidden_part_of_a_sink_is_no_part_of_another(given: Served) -> None:
    """A new path for a sink with a hidden query is refused, with the reason."""
    await created(given)
    shown = (await given.ask(ONE))[2]
    status, _, told = await given.ask(ONE, "PUT", json=shown | {"sink": shown["sink"].replace("?", "/other?")})
    assert (status, told["errors"][0]["key"]) == (422, "sink")
    assert "not shown" in told["errors"][0]["expected"]


async def test_who_hangs_up_in_the_middle_of_a_body_is_no_fault_of_ours(
    given: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that disconnects within a body causes no error in the log."""
    host, _, port = given.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /subscriptions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {TOKEN}\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{".encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await given.ask("/livez"))[0] == 200
    await until(lambda: not [task for task in asyncio.all_tasks() if "run_asgi" in repr(task)], "the request's end")
    assert [line for line in caplog.records if line.levelname == "ERROR"] == []


async def test_a_backfill_over_http(given: Served) -> None:
    """Law: POST begins backfills of all or the named feeds, GET shows them, DELETE cancels them."""
    await created(given, source=None, types=None, filters=[])
    path, keys = f"{ONE}/backfill", FeedKeys.of("poller", FEEDS[0])
    status, _, told = await given.ask(path, "POST")
    assert (status, told["detail"]) == (
        409,
        f"{FEEDS[0]} has not begun for rostering yet: a daemon does that soon; try again",
    )
    await given.store.xgroup_create(keys.events, "sub:rostering", id="0", mkstream=True)
    assert (await given.ask(path, "POST"))[2] == [
        {"feed": FEEDS[0], "state": "not read yet", "id": None, "done": 0, "total": 0}
    ]
    await given.store.hset(keys.state, mapping={"generation": "g", "sequence": 1})
    await given.store.hset(keys.snapshots, "k", "x")
    assert (await given.ask(path))[2] == []
    status, _, told = await given.ask(path, "POST", json={"feeds": [FEEDS[0]]})
    assert status == 202
    begun = {"feed": FEEDS[0], "state": "begun", "id": told[0]["id"], "done": 0, "total": 1}
    assert told == [begun]
    assert (await given.ask(path, "POST"))[2] == [begun | {"state": "under way"}]
    assert (await given.ask(path))[2] == [begun | {"state": "under way"}]
    assert (await given.ask(path, "DELETE"))[2] == {"cancelled": [FEEDS[0]]}
    assert (await given.ask(path, "DELETE"))[2] == {"cancelled": []}
    assert (await given.ask("/subscriptions/none/backfill", "POST"))[0] == 404
    assert (await given.ask(path, "POST", json={"feeds": ["acme/none"]}))[0] == 422
    assert (await given.ask(path, "POST", json={"feed": 1}))[0] == 422
    assert (await given.ask(path, "POST", json={"feeds": []}))[0] == 422


async def test_a_backfill_of_one_feed_is_cancelled_alone(given: Served) -> None:
    """Law: DELETE cancels the backfills of the feeds that its body names, and what it cannot use cancels none."""
    await created(given, source=None, types=None, filters=[], config={})
    path = f"{ONE}/backfill"
    for feed in FEEDS:
        keys = FeedKeys.of("poller", feed)
        await given.store.xgroup_create(keys.events, "sub:rostering", id="0", mkstream=True)
        await given.store.hset(keys.state, mapping={"generation": "g", "sequence": 1})
        await given.store.hset(keys.snapshots, "k", "x")
    assert [one["feed"] for one in (await given.ask(path, "POST"))[2]] == list(FEEDS)
    for method in ("POST", "DELETE"):
        status, _, told = await given.ask(f"{path}?feeds={FEEDS[0]}", method)
        assert (status, told["errors"][0]["key"]) == (400, "feeds")
        for body, key in (({"feed": [FEEDS[0]]}, "feed"), ({"feeds": []}, "feeds"), ({"feeds": ["", 1]}, "feeds[1]")):
            status, _, told = await given.ask(path, method, json=body)
            assert (status, told["errors"][0]["key"]) == (422, key)
        status, _, told = await given.ask(path, method, json={"feeds": [FEEDS[0], ""]})
        assert (status, told["detail"]) == (422, "feeds[1]: expected a feed of the subscription, SOURCE/NAME")
        assert (await given.ask(path, method, json={"feeds": ["acme/none"]}))[0] == 422
        assert (await given.ask(path, method, data=b"{", headers={"content-type": "application/json"}))[0] == 400
    assert (await given.ask(path, "DELETE", json={"feeds": [FEEDS[1]]}))[2] == {"cancelled": [FEEDS[1]]}
    assert [one["feed"] for one in (await given.ask(path))[2]] == [FEEDS[0]]
    assert (await given.ask(path, "DELETE"))[2] == {"cancelled": [FEEDS[0]]}
