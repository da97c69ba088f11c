"""Canonical form: when two records count as equal.

Key order and white space do not count, ``1`` and ``1.0`` are equal, null and absent differ, array order counts.
Numbers are compared by their exact decimal value, never by a float near it: ``0.1`` and ``0.1000000000000000000001``
differ, and so do two integers of thirty digits that differ in the last. Nothing here changes what is published: events
carry the bytes that were received, the canonical form only decides whether there is something to publish.

The fast way is msgspec; JSON that it cannot hold exactly (integers beyond its range) goes the slow way through the
standard library. Both ways give equal values for equal numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import (
    MAX_EMAX,
    MAX_PREC,
    MIN_EMIN,
    Context,
    Decimal,
    DecimalException,
    Inexact,
    InvalidOperation,
    Overflow,
)
from typing import Any, Final, NoReturn

import msgspec

from poller.changes.unambiguous import TOO_DEEP, refuse_ambiguous

# Integers of up to this many digits are int whatever way they are read (here Python and msgspec stop converting), so
# that 10 and 1e1 meet in one form; longer ones are Decimal whatever way they are read.
_INT_DIGITS: Final = 4300
_LONG: Final = re.compile(rb"[0-9]{%d}" % (_INT_DIGITS + 1)).search
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, Overflow, Inexact])


def _number(text: str) -> int | Decimal:
    """The exact value of a JSON number, in the one form that all its spellings share."""
    value = Decimal(text).normalize(_EXACT)
    if not value:
        return 0
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= 0 and value.adjusted() < _INT_DIGITS:
        return int(value)
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"not JSON: {text}")


_fast_decode: Final = msgspec.json.Decoder(float_hook=_number).decode
_fast_encode: Final = msgspec.json.Encoder(order="sorted", decimal_format="number").encode


def parse(raw: bytes) -> Any:
    """The value of a JSON text, numbers exact: dict, list, str, bool, None, int, or Decimal where int will not do.

    Raises:
        ValueError: not JSON, not UTF-8, nested too deep, or a number beyond any exponent; the text says which.
    """
    try:
        return _fast_decode(raw)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except msgspec.ValidationError:  # an integer too long for msgspec
        return _parse_slowly(raw)
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except DecimalException:
        raise ValueError("a number is out of any range") from None


def _parse_slowly(raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_refuse_constant)
        _fast_encode(value)  # refuses the lone surrogates that the standard library lets pass
        return value
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except UnicodeEncodeError:
        raise ValueError("not JSON: a lone surrogate") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except DecimalException:
        raise ValueError("a number is out of any range") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def parse_received(raw: bytes) -> tuple[Any, bytes]:
    """The value of a JSON text as :func:`parse` has it, and its canonical form; a text that can be misread is refused.

    For what comes from outside. What is kept already was read this way once.

    An integer of more digits than Python reads is refused too: a consumer that is written in it could read no event
    with such a record.

    Raises:
        ValueError: see :func:`parse` and :func:`~poller.changes.unambiguous.refuse_ambiguous`.
    """
    try:
        value = parse(raw)
        form = _fast_encode(value)
    except RecursionError:  # reading succeeded with hardly a level to spare, writing needs more
        raise ValueError(TOO_DEEP) from None
    refuse_ambiguous(raw, form)
    if len(raw) > _INT_DIGITS and _LONG(raw):
        json.loads(raw, parse_int=_refuse_long, parse_float=str)
    return value, form


def _refuse_long(digits: str) -> None:
    count = len(digits.lstrip("-"))
    if count > _INT_DIGITS:
        raise ValueError(f"an integer of {count} digits: at most {_INT_DIGITS} are usable")


def encode(value: Any) -> bytes:
    """The canonical form of a value from :func:`parse`: keys sorted, no white space, one spelling per number."""
    return _fast_encode(value)


def canonical(raw: bytes) -> bytes:
    """The canonical form of a JSON text. Raises what :func:`parse` raises."""
    return encode(parse(raw))


def same(left: Any, right: Any) -> bool:
    """Whether two parsed values are equal. Not ``==``: to Python ``True == 1``, to JSON they differ."""
    return encode(left) == encode(right)


def without(pointers: tuple[str, ...]) -> Callable[[Any], Any]:
    """A function that leaves the given JSON pointers (RFC 6901) out of a value, for the configuration's ``ignore``.

    The function returns a new value where it leaves something out and never touches its argument. A pointer to
    nothing is no error: records may lack the key.
    """
    paths = tuple(tuple(map(_unescape, pointer.split("/")[1:])) for pointer in pointers)

    def strip(value: Any) -> Any:
        for path in paths:
            value = _drop(value, path)
        return value

    return strip


def _unescape(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")


def _drop(value: Any, path: tuple[str, ...]) -> Any:
    if not path or not isinstance(value, dict) or path[0] not in value:
        return value
    head, rest = path[0], path[1:]
    if not rest:
        return {key: item for key, item in value.items() if key != head}
    return {**value, head: _drop(value[head], rest)}
