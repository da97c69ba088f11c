"""Profiles of refused requests: parameters, limits, credentials, errors; and of ETags."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import format_datetime
from hashlib import blake2b
from http import HTTPStatus
from typing import Final

from poller.sandbox.api import SandboxRequest, SandboxResponse, refusal
from poller.sandbox.faults.base import (
    Layer,
    Profile,
    ProfileKind,
    SandboxScene,
    asking,
    layering,
    of_asks,
    on_answers,
    on_asks,
    parameter,
)

MAX_LIMIT: Final = 50
_PARAMETERS: Final = {
    "no-delta": ("sinceDeltaToken",),
    "no-limit": ("limit",),
    "no-fields": ("fields", "fields[]"),
}
_SPELLINGS: Final[dict[str, Callable[[list[tuple[str, str]]], bool]]] = {
    "repeat": lambda asked: all(name == "fields" and "," not in value for name, value in asked),
    "comma": lambda asked: len(asked) <= 1 and all(name == "fields" for name, _ in asked),
    "brackets": lambda asked: all(name == "fields[]" and "," not in value for name, value in asked),
}
_STATUSES: Final = (408, 425, 429, 500, 502, 503, 504)
_REDIRECT: Final = SandboxResponse(HTTPStatus.FOUND, b"", (("location", "?"),))
_TOO_LARGE: Final = (400, 413, 422)
_PATIENCE: Final[dict[str, tuple[str, Callable[[datetime], str]]]] = {
    "seconds": ("one second", lambda _now: "1"),
    "date": ("a date two seconds ahead", lambda now: format_datetime(now + timedelta(seconds=2), usegmt=True)),
    "nonsense": ("soon", lambda _now: "soon"),
    "zero": ("0", lambda _now: "0"),
    "negative": ("-5", lambda _now: "-5"),
    "years": ("10⁹ seconds", lambda _now: "1000000000"),
}


def _without(names: tuple[str, ...]) -> Callable[[SandboxRequest], SandboxRequest | SandboxResponse]:
    def edit(ask: SandboxRequest) -> SandboxRequest | SandboxResponse:
        if any(name in names for name, _ in ask.query):
            return refusal(HTTPStatus.BAD_REQUEST, "unknownParameter", f"there is no parameter {names[0]}")
        return ask

    return edit


def _spelled(
    takes: Callable[[list[tuple[str, str]]], bool],
) -> Callable[[SandboxRequest], SandboxRequest | SandboxResponse]:
    def edit(ask: SandboxRequest) -> SandboxRequest | SandboxResponse:
        if takes([pair for pair in ask.query if pair[0] in _PARAMETERS["no-fields"]]):
            return ask
        return refusal(HTTPStatus.BAD_REQUEST, "invalidFields", "fields are spelled in another way")

    return edit


def _alone(ask: SandboxRequest) -> SandboxRequest | SandboxResponse:
    if parameter(ask, "pageToken") is None or len(ask.query) == 1:
        return ask
    return refusal(HTTPStatus.BAD_REQUEST, "invalidPageToken", "pageToken stands alone")


def _at_most(status: int) -> Callable[[SandboxRequest], SandboxRequest | SandboxResponse]:
    def edit(ask: SandboxRequest) -> SandboxRequest | SandboxResponse:
        limit = parameter(ask, "limit") or ""
        if limit.isdecimal() and int(limit[:9]) > MAX_LIMIT:
            return refusal(status, "limitTooLarge", f"limit must be at most {MAX_LIMIT}")
        return ask

    return edit


def _always(status: int) -> Callable[[SandboxRequest], SandboxRequest | SandboxResponse]:
    return lambda _ask: refusal(status, "unavailable", HTTPStatus(status).phrase)


def _busy(status: int, after: Callable[[datetime], str]) -> Callable[[SandboxScene], Layer]:
    def make(scene: SandboxScene) -> Layer:
        return on_asks(lambda _ask: refusal(status, "busy", "try later", (("retry-after", after(scene.now())),)))

    return make


def _unauthorized(scene: SandboxScene) -> Layer:
    def edit(ask: SandboxRequest) -> SandboxRequest | SandboxResponse:
        if parameter(ask, "pageToken") is None or scene.switches.token_changes:
            return ask
        challenge = ("www-authenticate", 'Bearer error="invalid_token"')
        return refusal(HTTPStatus.UNAUTHORIZED, "unauthorized", "the bearer token has expired", (challenge,))

    return on_asks(edit)


def _echoing(scene: SandboxScene) -> Layer:
    return on_asks(lambda _ask: refusal(HTTPStatus.BAD_REQUEST, "bad", f"what is Bearer {scene.switches.token}?"))


def _bare(status: int) -> Callable[[SandboxRequest], SandboxResponse]:
    return lambda _ask: SandboxResponse(status, b"", ())


def _tagged(ask: SandboxRequest, said: SandboxResponse) -> SandboxResponse:
    if said.status != HTTPStatus.OK:
        return said
    tag = f'"{blake2b(said.body, digest_size=8).hexdigest()}"'
    if ask.if_none_match == tag:
        return SandboxResponse(HTTPStatus.NOT_MODIFIED, b"", (("etag", tag),))
    return SandboxResponse(said.status, said.body, (*said.headers, ("etag", tag)))


ASKED: Final = (
    *(of_asks(name, f"400 for a request with {names[0]}", _without(names)) for name, names in _PARAMETERS.items()),
    *(of_asks(f"limit-{status}", f"{status} for a limit above {MAX_LIMIT}", _at_most(status)) for status in _TOO_LARGE),
    *(
        of_asks(f"fields-{style}", f"400 for fields that are not spelled as fields_style {style} does", _spelled(takes))
        for style, takes in _SPELLINGS.items()
    ),
    of_asks("page-token-alone", "400 for a request with pageToken and any other parameter", _alone),
    of_asks(
        "delta-ignored",
        "sinceDeltaToken is ignored: everything comes, with another delta token",
        lambda ask: asking(ask, sinceDeltaToken=None),
    ),
    Profile(
        "echoes-token", "400 for every request, with the bearer token in the message", _echoing, ProfileKind.ANSWER
    ),
    of_asks("redirect", "302 to the same place for every request", lambda _ask: _REDIRECT, ProfileKind.ANSWER),
    *(
        of_asks(f"status-{status}", f"{status} for every request, unasked", _bare(status), ProfileKind.ANSWER)
        for status in (204, 304)
    ),
    Profile(
        "401-mid-round",
        "401 for a request with a page token, until POST /_sandbox/token changes the token",
        _unauthorized,
        ProfileKind.MANNERS,
    ),
    *(
        of_asks(f"status-{status}", f"{status} for every request", _always(status), ProfileKind.MANNERS)
        for status in _STATUSES
    ),
    *(
        Profile(
            f"{status}-{kind}",
            f"{status} for every request, Retry-After: {shown}",
            _busy(status, after),
            ProfileKind.MANNERS,
        )
        for status in (429, 503)
        for kind, (shown, after) in _PATIENCE.items()
    ),
)
"""Profiles that decide by the request, before anything is read."""

TAGGED: Final = (
    layering("etag", "answers have an ETag; 304 for a request that sends it as If-None-Match", on_answers(_tagged)),
)
"""Profiles that decide by the body, so after everything that changes it."""
