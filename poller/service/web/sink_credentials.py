"""The ``sinkcredential`` of a subscription: what a request may say of it, and what becomes of the one that is kept.

=======================  ============================================================================
a request says           and then
=======================  ============================================================================
an access token, a name  it is kept in place of the one that was
and a secret
``null``                 there is none any more
what was shown           it stays; refused where the sink is at another host
nothing                  it stays; gone where the sink is at another host
=======================  ============================================================================

Law: shown is that there is one, and of which kind. It follows the sink to no other scheme, host or port, whatever two
requests do at the same time. Beside ``auth``, which no request changes, there is none.

Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from poller.config.subscriptions import SubscriptionSettings
from poller.config.urls import same_host
from poller.credentials.brought import brought_of, kind_of, written
from poller.service.web.problems import Wrong
from poller.service.web.subscription_shapes import SinkCredential, Wanted
from poller.store.registering import Following

_KEY: Final = "sinkcredential"
_BESIDE_AUTH: Final = (
    "expected nothing: the subscription has auth, which names where its credential is kept; it is deleted and added "
    "again to have another"
)


class _Outline(msgspec.Struct, frozen=True):
    sink: str = ""


def shown_credential(one: SubscriptionSettings, brought: bytes | None) -> SinkCredential | None:
    """That there is one, and of which kind.

    Args:
        one: the subscription.
        brought: what a request has brought, as it is kept.
    """
    if brought is not None:
        return SinkCredential(kind_of(brought))
    return None if one.auth.kind == "none" else SinkCredential(one.auth.kind)


def as_it_was(wanted: Wanted, before: SubscriptionSettings | None, brought: bytes | None) -> bool:
    """Whether a request says what was shown, and there was something."""
    shown = shown_credential(before, brought) if before else None
    return shown is not None and wanted.sinkcredential == msgspec.to_builtins(shown)


def wrong_credential(wanted: Wanted, before: SubscriptionSettings | None, brought: bytes | None) -> list[Wrong]:
    """What of it a request may not say; no value is repeated."""
    given = wanted.sinkcredential
    if given is msgspec.UNSET or as_it_was(wanted, before, brought):
        return []
    if before and before.auth.kind != "none":
        return [Wrong(_KEY, _BESIDE_AUTH)]
    made = brought_of(given) if given is not None else None
    wrong = made.items() if isinstance(made, dict) else ()
    return [Wrong(f"{_KEY}.{key}" if key else _KEY, expected) for key, expected in wrong]


def new_credential(wanted: Wanted) -> bytes | None:
    """The credential that a request brings, as it is to be kept; None where it brings none that can be used."""
    given = wanted.sinkcredential
    made = brought_of(given) if given is not None and given is not msgspec.UNSET else {}
    return None if isinstance(made, dict) else written(made)


def following(wanted: Wanted, sink: str) -> Following:
    """What becomes of the credential that is kept.

    Args:
        wanted: a request in which nothing was wrong.
        sink: where the subscription's events go from now on.
    """
    new = new_credential(wanted)
    if new is not None or wanted.sinkcredential is None:
        return lambda _, __: new
    return lambda before, credential: credential if same_host(sink, _sink(before)) else None


def _sink(settings: bytes) -> str:
    try:
        return msgspec.json.decode(settings, type=_Outline).sink
    except msgspec.DecodeError:  # another version's
        return ""
