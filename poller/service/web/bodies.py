"""What a request brings along: JSON of a known shape, or a refusal that says what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from poller.config.repetition import repeated_keys
from poller.config.showing import shown_key
from poller.service.web.problems import Refused, Wrong
from poller.service.web.routing import JSON

_KINDS: Final = frozenset({JSON, "application/cloudevents-subscription+json"})
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_PATH: Final = re.compile(r" - at `\$\.?(.*)`$")

T = TypeVar("T")


class PauseWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request to pause may say.

    Attributes:
        reason: for whoever looks.
    """

    reason: Annotated[str, msgspec.Meta(max_length=500)] = "by request"


async def reason_of(request: Request) -> str:
    """Why something is to be paused; there is a reason to give where none is said.

    Raises:
        Refused: the body is no :class:`PauseWanted`.
    """
    body = await body_of(request)
    return usable(body, lambda one: decoded(one, PauseWanted)).reason if body else PauseWanted().reason


async def body_of(request: Request) -> bytes:
    """The bytes.

    Raises:
        Refused: they are said to be something else than JSON.
    """
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind not in _KINDS:
        raise Refused(415, f"content-type: expected {JSON}", headers={"accept": JSON})
    return body


def usable(body: bytes, read: Callable[[bytes], T | list[Wrong]]) -> T:
    """What ``read`` makes of it.

    Raises:
        Refused: it is no JSON, or ``read`` says what is wrong.
    """
    try:
        found = read(body)
    except ValueError as error:
        raise Refused(400, str(error)) from None
    if isinstance(found, list):
        raise unusable(found)
    return found


def unusable(errors: list[Wrong]) -> Refused:
    """The refusal of a body in which this is wrong."""
    first = errors[0]
    return Refused(422, f"{first.key}: {first.expected}" if first.key else first.expected, errors=errors)


def decoded(body: bytes, shape: type[T]) -> T | list[Wrong]:
    """A request's JSON, or what is wrong with its shape.

    Raises:
        ValueError: it is no JSON, or too deep.
    """
    try:
        made = msgspec.json.decode(body, type=shape)
        twice = list(repeated_keys(body))
    except msgspec.ValidationError as error:
        return [_wrong(str(error), shape)]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise ValueError("expected a JSON object") from None
    return [Wrong(shown_key(key), "expected once: this key stands twice") for key in twice] or made


def _wrong(said: str, shape: type[Any]) -> Wrong:
    """What msgspec has said; of an unknown key its name, and of the whole object those that are known."""
    found = _PATH.search(said)
    place, said = found[1] if found else "", _PATH.sub("", said)
    unknown = _UNKNOWN.fullmatch(said)
    if unknown is None:
        return Wrong(place, said)
    known = "" if place else f"; known are {', '.join(shape.__struct_fields__)}"
    return Wrong(f"{place}.{unknown[1]}".lstrip("."), f"unknown key{known}")
