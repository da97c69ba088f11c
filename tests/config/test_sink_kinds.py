"""Laws of the kinds of sinks that the configuration knows."""

from __future__ import annotations

from importlib import import_module

import pytest

from poller.config.http import AUTH_KINDS
from poller.config.subscriptions import SINKS, SinkKind, SubscriptionProtocol, SubscriptionSettings, sink_kind_of
from poller.http.ssrf import AddressPolicy


@pytest.mark.parametrize("scheme", SINKS)
def test_each_scheme_leads_to_a_module_that_opens_sinks(scheme: str) -> None:
    """Each scheme has a module that opens sinks, and names only existing keys."""
    kind = SINKS[scheme]
    assert scheme in (kind.tls, kind.plain)
    assert sink_kind_of(f"{scheme}://h/x") is kind
    assert callable(import_module(f"poller.delivery.sinks.{kind.module}").open_sink)
    names = list(SubscriptionSettings.model_fields)
    assert kind.refuses <= set(names[names.index("sink") :])
    assert kind.auth <= AUTH_KINDS.keys()
    assert "none" in kind.auth


def test_every_protocol_has_a_kind_of_sink() -> None:
    """Every protocol of the Subscriptions API has a kind of sink."""
    assert {kind.protocol for kind in SINKS.values()} == set(SubscriptionProtocol)


@pytest.mark.parametrize(("url", "protocol"), [("", "HTTP"), ("other://h", "HTTP"), ("NATS://h/x", "NATS")])
def test_a_url_of_no_kind_counts_as_a_webhooks(url: str, protocol: str) -> None:
    """A URL of an unknown kind, as a later version may store it, counts as a webhook."""
    assert sink_kind_of(url).protocol == protocol


def test_a_kind_without_a_host_says_itself_what_it_may_reach() -> None:
    """A kind without a host decides itself what it may reach; the address guard is not used."""

    def reach(url: str, allowed: AddressPolicy) -> str | None:
        return None if allowed.private else f"{url} only with allow_private"

    local = SinkKind("local", SubscriptionProtocol.HTTP, "local", "", str, reach=reach)
    assert local.forbidden("local:///x", AddressPolicy()) == "local:///x only with allow_private"
    assert local.forbidden("local:///x", AddressPolicy.of((), private=True)) is None
    assert local.is_local
    plain = SinkKind("datagrams", SubscriptionProtocol.HTTP, "", "udp", str)
    assert plain.forbidden("udp://192.88.98.7:5/", AddressPolicy()) == (
        "udp:// only with allow_private = true, or to a host of allow_hosts"
    )
    assert plain.forbidden("udp://192.88.98.7:5/", AddressPolicy.of((), private=True)) is None
    guarded = local._replace(reach=None)
    assert not guarded.is_local
    assert guarded.forbidden("local:///x", AddressPolicy()) == "a URL that begins with local:// and a host"
