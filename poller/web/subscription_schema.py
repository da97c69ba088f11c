"""A subscription in the CloudEvents Subscriptions API, and in a configuration.

The object has ``id``, ``source``, ``types``, ``filters``, ``sink``, ``protocol`` and ``protocolsettings``; what else
can be set stands in ``config`` under the names that it has in the configuration file. ``source`` is a filter by another
name: events have exactly that source.

**Invariants**

* What is shown may be sent back as it is and changes nothing.
* What may be a secret is shown as ``…``: the value of a header, the query of the sink, and its path unless the admin
  token asks. That sign can stand in no header and no URL, so where it comes back it means "as it was".
* A request names no file and no program of this machine; those of the configuration file and of the command line stay
  as they were.
* Hidden values go to no other host than before: otherwise a client that may change a sink could have them sent to
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
from poller.config.subscriptions import SubscriptionProtocol, SubscriptionSettings, sink_kind_of
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
    """The object as it may be shown.

    Args:
        one: its settings; None where this version cannot use what is kept of it.
        status: how it does.
        whole: with the path of its sink, which may be a secret.
        secret: that was made for it just now.
        brought: the credential that a request has brought, as it is kept.
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
    """The object of a request, or what is wrong with its shape.

    Raises:
        ValueError: it is no JSON, or too deep.
    """
    return decoded(body, SubscriptionRequest)


def settings_values(
    wanted: SubscriptionRequest, name: str, before: SubscriptionSettings | None, brought: bytes | None = None
) -> dict[str, Any] | list[InvalidParameter]:
    """The keys and values of a ``[[subscriptions]]`` table, or what a request may not say.

    Args:
        wanted: the object.
        name: the subscription's id.
        before: as it was, where it is to be changed.
        brought: the credential that it had by a request, as it is kept.
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
    wrong += wrong_credential(wanted, before, brought)
    protocol = sink_kind_of(wanted.sink).protocol
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
    """A problem of the configuration as one of the request that made it."""
    return InvalidParameter(_key(problem.key, wanted), problem.expected, shown_value(problem))


_NEW: Final = "expected the value: there was no header of this name"


_ANOTHER_HOST: Final = (
    "expected the host that it had, for what is not shown goes to no other one: send header values and sinkcredential "
    "again; one with auth or client_cert_file is deleted and added again"
)
_SHOWN: Final = f"expected the sink as it is shown, or a whole URL: {HIDDEN} stands for a part that is not shown"
_NULL: Final = "expected a value; leave the key out for the default"


def _nulls(wanted: SubscriptionRequest) -> Iterator[Key]:
    """Where null stands in what goes into the configuration, which knows no null."""
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
    """Where it stands in the object. The first filter is ``source`` where there is one."""
    match key:
        case ("filters", int(place), *rest) if wanted.source is not None:
            return shown_key(("filters", place - 1, *rest)) if place else "source"
        case ("headers", *_):
            return shown_key(("protocolsettings", *key))
        case (name, *_) if name in CONFIG:
            return shown_key(("config", *key))
    return shown_key(key)


def _secretive(wanted: SubscriptionRequest, before: SubscriptionSettings, brought: bytes | None) -> bool:
    """Whether something is asked to go on being sent that is not shown."""
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


# The ``sinkcredential`` of a subscription: what a request may say of it, and what becomes of the one that is kept.
#
# =======================  ============================================================================
# a request says           and then
# =======================  ============================================================================
# an access token, a name  it is kept in place of the one that was
# and a secret
# ``null``                 there is none any more
# what was shown           it stays; refused where the sink is at another host
# nothing                  it stays; gone where the sink is at another host
# =======================  ============================================================================
#
# Law: shown is that there is one, and of which kind. It follows the sink to no other scheme, host or port, whatever
# two
# requests do at the same time. Beside ``auth``, which no request changes, there is none.
#
# Pure.

_KEY: Final = "sinkcredential"
_BESIDE_AUTH: Final = (
    "expected nothing: the subscription has auth, which names where its credential is kept; it is deleted and added "
    "again to have another"
)


def shown_credential(one: SubscriptionSettings, brought: bytes | None) -> SinkCredential | None:
    """That there is one, and of which kind.

    Args:
        one: the subscription.
        brought: what a request has brought, as it is kept.
    """
    if brought is not None:
        return SinkCredential(kind_of(brought))
    return None if one.auth.kind == "none" else SinkCredential(one.auth.kind)


def as_it_was(wanted: SubscriptionRequest, before: SubscriptionSettings | None, brought: bytes | None) -> bool:
    """Whether a request says what was shown, and there was something."""
    shown = shown_credential(before, brought) if before else None
    return shown is not None and wanted.sinkcredential == msgspec.to_builtins(shown)


def wrong_credential(
    wanted: SubscriptionRequest, before: SubscriptionSettings | None, brought: bytes | None
) -> list[InvalidParameter]:
    """What of it a request may not say; no value is repeated."""
    given = wanted.sinkcredential
    if given is msgspec.UNSET or as_it_was(wanted, before, brought):
        return []
    if before and before.auth.kind != "none":
        return [InvalidParameter(_KEY, _BESIDE_AUTH)]
    made = brought_of(given) if given is not None else None
    wrong = made.items() if isinstance(made, dict) else ()
    return [InvalidParameter(f"{_KEY}.{key}" if key else _KEY, expected) for key, expected in wrong]


def new_credential(wanted: SubscriptionRequest) -> bytes | None:
    """The credential that a request brings, as it is to be kept; None where it brings none that can be used."""
    given = wanted.sinkcredential
    made = brought_of(given) if given is not None and given is not msgspec.UNSET else {}
    return None if isinstance(made, dict) else written(made)


def following(wanted: SubscriptionRequest, sink: str) -> Following:
    """What becomes of the credential that is kept.

    Args:
        wanted: a request in which nothing was wrong.
        sink: where the subscription's events go from now on.
    """
    new = new_credential(wanted)
    if new is not None or wanted.sinkcredential is None:
        return lambda _, __: new
    return lambda before, credential: credential if same_host(sink, outline_of(before).sink) else None


# Shapes of a subscription over HTTP. An unknown key is an error in a request, and stands in no answer.

CONFIG: Final = (
    "feeds",
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
    """How a request is made.

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
        id: made up where a new one has none.
        source: the only source whose events are delivered.
        types: the only types.
        filters: all must hold.
        config: keys of a ``[[subscriptions]]`` table, those of :data:`CONFIG`.
        protocol: of CloudEvents; left out: the sink's own.
        protocolsettings: how requests are made.
        sinkcredential: what the sink is sent as Authorization; null for none, left out or as it was shown: as it was.
        status: passed over, so that what was shown can be sent back.
        publickeys: likewise.
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
        """Without anything that may be secret."""
        return f"Wanted(id={self.id!r})"


class SinkCredential(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That there is a credential, and nothing of it.

    Attributes:
        credentialtype: ``ACCESSTOKEN`` or ``PLAIN``; of one that no request has brought the kind of its place,
            as in the configuration.
    """

    credentialtype: str


class SubscriptionObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """The object of an answer, key for key; see :class:`SubscriptionRequest`.

    Attributes:
        id: its name.
        sink: where its events go, without the query, and without the path unless the admin token asks.
        protocol: of CloudEvents.
        protocolsettings: how requests are made.
        config: what is set of the rest.
        status: how it does.
        source: the only source whose events are delivered.
        types: the only types.
        filters: all must hold.
        sinkcredential: the kind of its credential, where it has one.
        signingsecret: the secret that signs its requests; in the answer to its creation and never again.
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
