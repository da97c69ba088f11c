"""The shapes of a subscription over HTTP: what a request may bring, and what an answer holds.

Law: a key that is not here is an error in a request, and stands in no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from poller.service.subscription_status import SubscriptionStatus

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


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object of a request.

    Attributes:
        sink: where events are sent.
        id: made up where a new one has none.
        source: the only source whose events are delivered.
        types: the only types.
        filters: all must hold.
        config: keys of a ``[[subscriptions]]`` table, those of :data:`CONFIG`.
        protocol: of CloudEvents.
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
    protocol: Literal["HTTP"] = "HTTP"
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
        credentialtype: ``ACCESSTOKEN`` or ``PLAIN``; of one that no request has brought the kind of its place:
            ``token_file``, ``token_env``, ``oauth2`` or ``command``.
    """

    credentialtype: str


class SubscriptionObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """The object of an answer, key for key; see :class:`Wanted`.

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
