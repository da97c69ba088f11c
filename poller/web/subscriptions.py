"""``/subscriptions``: the CloudEvents Subscriptions API (0.1-wip); pausing, resuming and backfills.

**Invariants**

* The rules of the command line hold here too: a subscription of the configuration file can be changed only there.
* A signing secret is generated for each new subscription and shown only in the response to that request.
* A credential for the sink is never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Final
from urllib.parse import quote

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from poller.config.subscriptions import SubscriptionSettings
from poller.config.validation import subscription_or_problems
from poller.control import subscriptions as subscribing
from poller.control.backfill import BackfillControl, NotBegun, backfill_scope
from poller.control.factories import public_keys_of
from poller.control.status import SubscriptionStatus, status_of_new, subscription_statuses
from poller.control.subscriptions import settings_of
from poller.delivery.handshake import CALLBACK, encoded, state_called, stored_state
from poller.delivery.signing import new_secret
from poller.errors import (
    ConfigurationError,
    StoreError,
    StoreUnavailable,
    SubscriptionFiled,
    SubscriptionResumed,
    SubscriptionTaken,
    SubscriptionUnknown,
)
from poller.store.registry import Registry
from poller.store.subscriptions import Subscriptions
from poller.telemetry.logs import LogOnce
from poller.web.auth import Authorizer
from poller.web.context import AppContext
from poller.web.http import (
    Endpoint,
    InvalidParameter,
    RequestRefused,
    as_json,
    at,
    body_of,
    decoded,
    reason_of,
    require_known_parameters,
    span_of,
    unusable,
    usable,
)
from poller.web.subscription_schema import (
    SubscriptionObject,
    SubscriptionRequest,
    following,
    new_credential,
    read,
    settings_values,
    shown_object,
    wrong_of,
)

_PATH: Final = "/subscriptions"
_ONE: Final = f"{_PATH}/{{subscription}}"
_PERHAPS: Final = (
    "the store became unavailable, and the subscription may have been added: {error}. Get it by its id, "
    '"{name}", and delete it before adding it again: its secret is shown only once, and was not shown'
)
_SECRET_BYTES: Final = 32
_ID_BYTES: Final = 8
_STATUS: Final = {SubscriptionUnknown: 404, SubscriptionTaken: 409, SubscriptionFiled: 409, SubscriptionResumed: 409}


def subscription_routes(backing: AppContext, admission: Authorizer) -> list[Route]:
    """The routes.

    Args:
        backing: the configuration and the store.
        admission: decides who may make changes.
    """
    given = _Subscriptions(backing, admission)

    def changing(endpoint: Endpoint) -> Endpoint:
        return admission.only(_with_secret(endpoint))

    return [
        at(_PATH, GET=given.listed, POST=changing(given.created)),
        at(_ONE, GET=_with_secret(given.one), PUT=changing(given.changed), DELETE=changing(given.removed)),
        at(f"{_ONE}/pause", POST=changing(given.paused)),
        at(f"{_ONE}/resume", POST=changing(given.resumed)),
        at(
            f"{_ONE}/backfill",
            GET=_with_secret(given.backfills),
            POST=changing(given.backfilled),
            DELETE=changing(given.not_backfilled),
        ),
    ]


class BackfillRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that begins or cancels backfills.

    Attributes:
        feeds: ``SOURCE/NAME``, at least one; None: all of the subscription's.
    """

    feeds: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] | None = None


class _Subscriptions:
    def __init__(self, backing: AppContext, admission: Authorizer) -> None:
        self._backing = backing
        self._admission = admission
        self._draw = backing.clock.random.randbytes

    async def listed(self, request: Request) -> Response:
        """GET: all subscriptions, by id."""
        span, kept = span_of(request), await self._backing.registry.all()
        names = sorted({*kept.registered, *(one.id for one in self._backing.settings.subscriptions)})
        async with self._backing.listing:
            found = await self._shown(kept, span.of(names), whole=self._admission.is_admin(request))
        return as_json(found, headers=span.links(_PATH, names))

    async def one(self, request: Request) -> Response:
        """GET: one subscription."""
        return as_json(await self._object(_name(request), whole=self._admission.is_admin(request)))

    async def created(self, request: Request) -> Response:
        """POST: add a subscription, with a signing secret if its kind of sink uses one."""
        wanted = await _wanted(request)
        name = f"s-{self._draw(_ID_BYTES).hex()}" if wanted.id is None else wanted.id
        made = self._settings(wanted, name, None)
        secret = new_secret(self._draw(_SECRET_BYTES)) if made.is_signed else None
        backing = self._backing
        new, secrets = new_credential(wanted), [secret] if secret else []
        try:
            await subscribing.add(
                backing.registry, backing.settings, made, secrets=secrets, now=backing.clock.now(), credential=new
            )
        except StoreUnavailable as error:
            raise RequestRefused(503, _PERHAPS.format(error=error, name=name)) from None
        try:
            shown = await self._object(name, secret=secret)
        except StoreError:  # it was removed just now; the secret is shown here or never
            status = status_of_new(name, made.sink, all_feeds=made.feeds is None, now=self._backing.clock.now())
            shown = shown_object(made, status, whole=True, secret=secret, brought=new)
        return as_json(shown, 201, {"location": f"{_PATH}/{quote(name)}"})

    async def changed(self, request: Request) -> Response:
        """PUT: replace a subscription."""
        name, backing = _name(request), self._backing
        kept = await backing.registry.all()
        subscribing.refuse_change(kept, backing.settings, name)  # first: a better body would change nothing
        wanted = await _wanted(request)
        if wanted.id not in (None, name):
            expected = f"expected {name}, as in the path; an id cannot be changed"
            raise RequestRefused(409, f"id: {expected}", errors=[InvalidParameter("id", expected, wanted.id[:64])])
        before = settings_of(kept, backing.settings, name)
        made = self._settings(wanted, name, before, kept.credentials.get(name))
        await subscribing.change(backing.registry, backing.settings, made, following(wanted, made.sink))
        return as_json(await self._object(name))

    async def removed(self, request: Request) -> Response:
        """DELETE: delete a subscription with its undelivered events."""
        await subscribing.remove(
            self._backing.client, self._backing.settings, _name(request), clock=self._backing.clock
        )
        return Response(status_code=204)

    async def paused(self, request: Request) -> Response:
        """POST: pause deliveries."""
        name, backing = _name(request), self._backing
        reason = await reason_of(request)
        await subscribing.pause(backing.client, backing.settings, name, reason=reason, now=backing.clock.now())
        return as_json(await self._object(name))

    async def resumed(self, request: Request) -> Response:
        """POST: resume deliveries."""
        name, backing = _name(request), self._backing
        await subscribing.resume(backing.client, backing.settings, name, now=backing.clock.now())
        return as_json(await self._object(name))

    async def backfills(self, request: Request) -> Response:
        """GET: the backfills under way."""
        return as_json(await (await self._backfill_of(request, is_begun=False)).under_way())

    async def backfilled(self, request: Request) -> Response:
        """POST: deliver every live record, once."""
        control = await self._backfill_of(request, await _wanted_feeds(request))
        return as_json(await control.start(name=self._draw(_ID_BYTES).hex()), 202)

    async def not_backfilled(self, request: Request) -> Response:
        """DELETE: cancel the backfills under way, all or those of the named feeds."""
        control = await self._backfill_of(request, await _wanted_feeds(request), is_begun=False)
        return as_json(await control.cancel())

    async def _backfill_of(
        self, request: Request, feeds: tuple[str, ...] = (), *, is_begun: bool = True
    ) -> BackfillControl:
        client, settings = self._backing.client, self._backing.settings
        scope = await backfill_scope(client, settings, _name(request), feeds, is_begun=is_begun)
        return BackfillControl(client, settings, scope)

    async def _object(self, name: str, *, whole: bool = True, secret: str | None = None) -> SubscriptionObject:
        found = await self._shown(await self._backing.registry.all(), [name], whole=whole, secret=secret)
        if not found:
            raise SubscriptionUnknown(f'there is no subscription "{name[:64]}"')
        return found[0]

    async def _shown(
        self, kept: Subscriptions, names: list[str], *, whole: bool, secret: str | None = None
    ) -> list[SubscriptionObject]:
        backing = self._backing
        found = await subscription_statuses(
            backing.client, backing.settings, now=backing.clock.now(), only=names, kept=kept
        )
        return [self._shown_one(kept, one, secret, whole=whole) for one in found]

    def _shown_one(
        self, kept: Subscriptions, status: SubscriptionStatus, secret: str | None, *, whole: bool
    ) -> SubscriptionObject:
        name = status.subscription
        one, brought = self._usable(kept, name), kept.credentials.get(name)
        keys = public_keys_of(one, kept.secrets.get(name, ())) if one else ()
        return shown_object(one, status, whole=whole, secret=secret, brought=brought, publickeys=keys)

    def _usable(self, kept: Subscriptions, name: str) -> SubscriptionSettings | None:
        try:
            return settings_of(kept, self._backing.settings, name)
        except ConfigurationError:  # another version's, or removed meanwhile
            return None

    def _settings(
        self, wanted: SubscriptionRequest, name: str, before: SubscriptionSettings | None, brought: bytes | None = None
    ) -> SubscriptionSettings:
        values = settings_values(wanted, name, before, brought)
        if isinstance(values, list):
            raise unusable(values)
        made = subscription_or_problems(values, self._backing.settings)
        if isinstance(made, list):
            raise unusable([wrong_of(one, wanted) for one in made])
        return made


def _name(request: Request) -> str:
    return str(request.path_params["subscription"])


async def _wanted(request: Request) -> SubscriptionRequest:
    return usable(await body_of(request), read)


async def _wanted_feeds(request: Request) -> tuple[str, ...]:
    """The feeds that the body of a request names; none: all of the subscription's."""
    require_known_parameters(request)
    body = await body_of(request)
    feeds = usable(body, _backfill_request).feeds if body else None
    return feeds or ()


def _backfill_request(body: bytes) -> BackfillRequest | list[InvalidParameter]:
    made = decoded(body, BackfillRequest)
    if isinstance(made, list):
        return made
    return [
        InvalidParameter(f"feeds[{place}]", "expected a feed of the subscription, SOURCE/NAME", feed)
        for place, feed in enumerate(made.feeds or ())
        if not feed
    ] or made


def _with_secret(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with errors of the subscription as HTTP statuses."""

    async def telling(request: Request) -> Response:
        try:
            return await endpoint(request)
        except NotBegun as error:
            raise RequestRefused(409, str(error)) from None
        except ConfigurationError as error:
            statuses: Mapping[type[ConfigurationError], int] = _STATUS
            raise RequestRefused(statuses.get(type(error), 422), str(error)) from None

    return telling


# The URL that a sink calls to grant events after its handshake. It needs only the store.

_RATE: Final = "WebHook-Allowed-Rate"
_TRIES: Final = 10

_log = structlog.get_logger("poller.web")


def callback_routes(registry: Callable[[], Registry | None]) -> list[Route]:
    """The routes.

    Args:
        registry: of the subscriptions; None: the store has not answered yet.
    """
    failure = LogOnce(_log, "callback")  # anyone may send these requests

    async def callback(request: Request) -> Response:
        """GET or POST with the key: grants events to the sink of a subscription."""
        kept_in = registry()
        if kept_in is None:
            return _later()
        subscription, key = request.query_params.get("id", ""), request.query_params.get("key", "")
        try:
            for _ in range(_TRIES):  # each turn beyond the first means that another state was stored meanwhile
                kept = await kept_in.handshake(subscription)
                failure.worked()
                state = state_called(stored_state(kept), key, request.headers.get(_RATE))
                if state is None:
                    return PlainTextResponse("no handshake waits for this key\n", status_code=404)
                if await kept_in.note_handshake(subscription, encoded(state), before=kept or b""):
                    _log.info("handshake", subscription=subscription, **msgspec.to_builtins(state))
                    return PlainTextResponse("granted\n")
        except StoreError as error:
            failure.failed(str(error))
        return _later()  # also where the store has lost the subscription, and not its handshake

    return [Route(CALLBACK, callback, methods=["GET", "POST"])]


def _later() -> Response:
    return PlainTextResponse("try again later\n", status_code=503)
