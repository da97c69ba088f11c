"""Translates subscriptions between the CloudEvents Subscriptions API and the configuration.

The object has ``id``, ``source``, ``types``, ``filters``, ``sink``, ``protocol`` and ``protocolsettings``; all other
settings are in ``config``, under their names of the configuration file. ``source`` is a filter: only events with
exactly this source.

**Invariants**

* An object that is sent back as it was shown changes nothing.
* Possible secrets are shown as ``…``: values of headers, the query of the sink, and its path unless the request has the
  admin token. No header and no URL may contain this sign, so in a request it means "unchanged".
* A request cannot name files and programs of this machine; those of the configuration file and of the command line
  stay.
* Hidden values are sent to no other host than before: otherwise a client that may change a sink could have them sent to
  itself.
* Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from poller.auth.sink_credential import brought_of, kind_of, written
from poller.config.errors import ConfigProblem, Key, shown_key, shown_value
from poller.config.http import host_only, redacted, same_host
from poller.config.subscriptions import SinkKind, SubscriptionProtocol, SubscriptionSettings, sink_kind_of
from poller.control.status import SubscriptionStatus
from poller.store.subscriptions import Following, outline_of
from poller.web.http import InvalidParameter, decoded

T = TypeVar("T")

HIDDEN: Final = "…"
_KEPT: Final = ("secret_files", "auth", "ca_file", "client_cert_file", "client_key_file")
_ELSEWHERE: Final = (
    "expected nothing: files and programs are named in the configuration file or by "
    "`poller subscriptions add --from-json`, and stay as they are"
)


def shown_object(
    one: SubscriptionSettings | None,
    status: SubscriptionStatus,
    *,
    whole: bool = False,
    secret: str | None = None,
    brought: bytes | None = None,
    publickeys: tuple[str, ...] = (),
) -> SubscriptionObject:
    """The object to show.

    Args:
        one: the settings; None: this version cannot use the stored ones.
        status: of the subscription.
        whole: show the path of the sink, which may be a secret.
        secret: generated just now.
        brought: the stored credential of a request.
        publickeys: of its signing secrets.
    """
    if one is None:
        return SubscriptionObject(
            status.subscription, status.sink, sink_kind_of(status.sink).protocol, None, {}, status
        )
    values: dict[str, Any] = one.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    filters = list(values.get("filters", ()))
    source = _source(filters[0]) if filters else None
    return SubscriptionObject(
        id=one.id,
        sink=redacted(one.sink) if whole else host_only(one.sink),
        protocol=sink_kind_of(one.sink).protocol,
        protocolsettings=ProtocolSettings(dict.fromkeys(one.headers, HIDDEN)),
        config={name: values[name] for name in CONFIG if name in values},
        status=status,
        source=source,
        types=one.types,
        filters=tuple(filters[1:] if source else filters),
        sinkcredential=shown_credential(one, brought),
        signingsecret=secret,
        publickeys=publickeys,
    )


def read(body: bytes) -> SubscriptionRequest | list[InvalidParameter]:
    """The object of a request, or the errors of its shape.

    Raises:
        ValueError: no JSON, or nested too deep.
    """
    return decoded(body, SubscriptionRequest)


def settings_values(
    wanted: SubscriptionRequest,
    name: str,
    before: SubscriptionSettings | None,
    brought: bytes | None = None,
    *,
    kind: SinkKind | None = None,
) -> dict[str, Any] | list[InvalidParameter]:
    """The keys and values of a ``[[subscriptions]]`` table, or the errors of a request.

    Args:
        wanted: the object.
        name: the subscription's id.
        before: the present settings, for a change.
        brought: the stored credential of an earlier request.
        kind: of its sink; None: the one that its URL names.
    """
    wrong = [InvalidParameter(f"config.{key}", _not_here(key)) for key in wanted.config if key not in CONFIG]
    wrong += [InvalidParameter(shown_key(key), _NULL) for key in _nulls(wanted)]
    headers = _headers(wanted.protocolsettings.headers, before)
    wrong += [
        InvalidParameter(f"protocolsettings.headers.{key}", _NEW) for key, value in headers.items() if value == HIDDEN
    ]
    if before and _secretive(wanted, before, brought) and not same_host(wanted.sink, before.sink):
        wrong.append(InvalidParameter("sink", _ANOTHER_HOST, host_only(wanted.sink)))
    shown = {host_only(before.sink), redacted(before.sink)} if before else set()
    if before and HIDDEN in wanted.sink and wanted.sink not in shown:
        wrong.append(InvalidParameter("sink", _SHOWN, host_only(wanted.sink)))
    kind = kind or sink_kind_of(wanted.sink)
    if kind.is_local and wanted.sink not in shown:
        wrong.append(InvalidParameter("sink", _LOCAL, host_only(wanted.sink)))
    wrong += wrong_credential(wanted, before, brought)
    protocol = kind.protocol
    if wanted.protocol not in (None, protocol):
        wrong.append(InvalidParameter("protocol", f"expected {protocol}, the protocol of this sink"))
    if wrong:
        return wrong
    filters = [*([] if wanted.source is None else [{"exact": {"source": wanted.source}}]), *wanted.filters]
    sink = before.sink if before and wanted.sink in shown else wanted.sink
    said = {"types": wanted.types, "filters": filters or None, "headers": headers or None}
    kept = before.model_dump(mode="json", exclude_unset=True, include=set(_KEPT)) if before else {}
    there = {key: value for key, value in said.items() if value is not None}
    return {"id": name, "sink": sink, **there, **wanted.config, **kept}


def wrong_of(problem: ConfigProblem, wanted: SubscriptionRequest) -> InvalidParameter:
    """A problem of the configuration as a problem of the request."""
    return InvalidParameter(_key(problem.key, wanted), problem.expected, shown_value(problem))


_NEW: Final = "expected the value: there was no header of this name"


_ANOTHER_HOST: Final = (
    "expected the host that it had, for what is not shown goes to no other one: send header values and sinkcredential "
    "again; one with auth or client_cert_file is deleted and added again"
)
_SHOWN: Final = f"expected the sink as it is shown, or a whole URL: {HIDDEN} stands for a part that is not shown"
_LOCAL: Final = (
    "expected a sink at a host: files and programs are named in the configuration file or by `poller subscriptions add`"
)
_NULL: Final = "expected a value; leave the key out for the default"


def _nulls(wanted: SubscriptionRequest) -> Iterator[Key]:
    """The places of null values; the configuration knows no null."""
    values: list[tuple[Key, Any]] = [(("config",), wanted.config), (("filters",), list(wanted.filters))]
    while values:
        key, value = values.pop()
        if value is None:
            yield key
        elif isinstance(value, Mapping):
            values += [((*key, name), inner) for name, inner in value.items()]
        elif isinstance(value, list):
            values += [((*key, place), inner) for place, inner in enumerate(value)]


def _not_here(key: str) -> str:
    return _ELSEWHERE if key in _KEPT else f"unknown key; known are {', '.join(CONFIG)}"


def _key(key: Key, wanted: SubscriptionRequest) -> str:
    """The key in the object. If there is a ``source``, it is the first filter."""
    match key:
        case ("filters", int(place), *rest) if wanted.source is not None:
            return shown_key(("filters", place - 1, *rest)) if place else "source"
        case ("headers", *_):
            return shown_key(("protocolsettings", *key))
        case (name, *_) if name in CONFIG:
            return shown_key(("config", *key))
    return shown_key(key)


def _secretive(wanted: SubscriptionRequest, before: SubscriptionSettings, brought: bytes | None) -> bool:
    """Whether the request keeps hidden values."""
    hidden = HIDDEN in wanted.protocolsettings.headers.values()
    proof = before.auth.kind != "none" or before.client_cert_file is not None
    return hidden or proof or as_it_was(wanted, before, brought)


def _source(filter_: Mapping[str, Any]) -> str | None:
    match filter_:
        case {"exact": {"source": str(source), **others}, **more} if not others and not more:
            return source
    return None


def _headers(wanted: Mapping[str, str], before: SubscriptionSettings | None) -> dict[str, str]:
    there = before.headers if before else {}
    return {name: there.get(name, value) if value == HIDDEN else value for name, value in wanted.items()}


# The ``sinkcredential`` of a subscription.
#
# =======================  ============================================================================
# in a request             effect
# =======================  ============================================================================
# an access token, or      replaces the stored credential
# a name and a secret
# ``null``                 deletes the stored credential
# the value shown before   keeps the credential; refused if the sink has another host
# absent                   keeps the credential; deletes it if the sink has another host
# =======================  ============================================================================
#
# Only the existence and the kind of a credential are shown. It is never sent to another scheme, host or port, even if
# two requests come at the same time. A subscription with ``auth``, which no request can change, has none. Pure.

_KEY: Final = "sinkcredential"
_BESIDE_AUTH: Final = (
    "expected nothing: the subscription has auth, which names where its credential is kept; it is deleted and added "
    "again to have another"
)


def shown_credential(one: SubscriptionSettings, brought: bytes | None) -> SinkCredential | None:
    """The kind of the credential; None: there is none.

    Args:
        one: the subscription.
        brought: the stored credential of a request.
    """
    if brought is not None:
        return SinkCredential(kind_of(brought))
    return None if one.auth.kind == "none" else SinkCredential(one.auth.kind)


def as_it_was(wanted: SubscriptionRequest, before: SubscriptionSettings | None, brought: bytes | None) -> bool:
    """Whether a request repeats the credential as it was shown."""
    shown = shown_credential(before, brought) if before else None
    return shown is not None and wanted.sinkcredential == msgspec.to_builtins(shown)


def wrong_credential(
    wanted: SubscriptionRequest, before: SubscriptionSettings | None, brought: bytes | None
) -> list[InvalidParameter]:
    """The errors of a credential in a request, without its values."""
    given = wanted.sinkcredential
    if given is msgspec.UNSET or as_it_was(wanted, before, brought):
        return []
    if before and before.auth.kind != "none":
        return [InvalidParameter(_KEY, _BESIDE_AUTH)]
    made = brought_of(given) if given is not None else None
    wrong = made.items() if isinstance(made, dict) else ()
    return [InvalidParameter(f"{_KEY}.{key}" if key else _KEY, expected) for key, expected in wrong]


def new_credential(wanted: SubscriptionRequest) -> bytes | None:
    """The credential of a request in its stored form; None: it has no usable one."""
    given = wanted.sinkcredential
    made = brought_of(given) if given is not None and given is not msgspec.UNSET else {}
    return None if isinstance(made, dict) else written(made)


def following(wanted: SubscriptionRequest, sink: str) -> Following:
    """Decide what happens to the stored credential.

    Args:
        wanted: a valid request.
        sink: the subscription's new sink.
    """
    new = new_credential(wanted)
    if new is not None or wanted.sinkcredential is None:
        return lambda _, __: new
    return lambda before, credential: credential if same_host(sink, outline_of(before).sink) else None


# Shapes of a subscription over HTTP. An unknown key in a request is an error.

CONFIG: Final = (
    "feeds",
    "when",
    "fields",
    "thin",
    "mode",
    "batch",
    "start",
    "rate",
    "concurrency",
    "timeout",
    "retry",
    "disable_after",
    "allow_private",
    "allow_hosts",
    "validate",
)
"""What a request may set in ``config``."""


class ProtocolSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of requests to the sink.

    Attributes:
        headers: extra request headers; shown with ``…`` for values.
        method: of HTTP.
    """

    headers: Mapping[str, str] = {}
    method: Literal["POST"] = "POST"


class SubscriptionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object of a request.

    Attributes:
        sink: where events are sent.
        id: generated if a new subscription has none.
        source: deliver only events of this source.
        types: deliver only events of these types.
        filters: deliver only events that match all filters.
        config: keys of a ``[[subscriptions]]`` table, those of :data:`CONFIG`.
        protocol: of CloudEvents; default: that of the sink.
        protocolsettings: of requests to the sink.
        sinkcredential: sent to the sink as Authorization; null: none; absent or as it was shown: unchanged.
        status: ignored, so that a shown object can be sent back.
        publickeys: ignored, likewise.
    """

    sink: str
    id: str | None = None
    source: str | None = None
    types: tuple[str, ...] | None = None
    filters: tuple[Any, ...] = ()
    config: Mapping[str, Any] = {}
    protocol: SubscriptionProtocol | None = None
    protocolsettings: ProtocolSettings = ProtocolSettings()
    sinkcredential: Mapping[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    status: Any = None
    publickeys: Any = None

    def __repr__(self) -> str:
        """The request without possible secrets."""
        return f"Wanted(id={self.id!r})"


class SinkCredential(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The kind of a credential, without its values.

    Attributes:
        credentialtype: ``ACCESSTOKEN`` or ``PLAIN``; of a credential of the configuration its kind,
            the key of ``auth``.
    """

    credentialtype: str


class SubscriptionObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """The object of a response; see :class:`SubscriptionRequest`.

    Attributes:
        id: of the subscription.
        sink: its URL without the query, and without the path unless the request has the admin token.
        protocol: of CloudEvents.
        protocolsettings: of requests to the sink.
        config: its other settings.
        status: of the subscription.
        source: deliver only events of this source.
        types: deliver only events of these types.
        filters: deliver only events that match all filters.
        sinkcredential: the kind of its credential, if it has one.
        signingsecret: the secret that signs its requests; only in the response to its creation.
        publickeys: of its ed25519 secrets (``whpk_``); a receiver verifies ``v1a`` signatures with them.
    """

    id: str
    sink: str
    protocol: str
    protocolsettings: ProtocolSettings | None
    config: Mapping[str, Any]
    status: SubscriptionStatus
    source: str | None = None
    types: tuple[str, ...] | None = None
    filters: tuple[Any, ...] = ()
    sinkcredential: SinkCredential | None = None
    signingsecret: str | None = None
    publickeys: tuple[str, ...] = ()
