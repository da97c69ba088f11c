"""Translation of redis-py's errors into the program's own: unavailable or refused.

*Unavailable*: it is unknown what the server did, or the server cannot work now; a retry may help. *Refused*: the server
understood the command and would give the same answer again.

**Invariants**

- redis-py's errors are translated here and nowhere else.
- Every failure becomes exactly one of the two:

===========================================================  ====================
no connection, timeout, a reply that cannot be read          StoreUnavailable
LOADING READONLY OOM BUSY MISCONF NOREPLICAS MASTERDOWN      StoreUnavailable
CLUSTERDOWN TRYAGAIN MOVED ASK UNBLOCKED                     StoreUnavailable
NOSCRIPT: forgotten between loading and running it           StoreUnavailable
NOAUTH WRONGPASS, where the password was accepted before     StoreUnavailable
NOAUTH WRONGPASS NOPERM WRONGTYPE ERR and any other          StoreRefused
the program's own errors, cancellation                       pass
===========================================================  ====================

- A password that stops working while the program runs is treated as an outage, because an operator may be changing it.
  A password that never worked (:func:`let_in` was not called) is refused.
- Redis before 7 wraps an error inside a script as ``ERR Error running script …: -OOM …``; the inner one counts.
- Problems with TLS are described so that an operator knows what to change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from redis import exceptions as spoken

from poller.errors import ConfigurationError, PollerError, StoreError, StoreRefused, StoreUnavailable
from poller.text import shown_path

if TYPE_CHECKING:
    from types import TracebackType

    from redis.asyncio import Redis


_REFUSED: Final = (spoken.AuthenticationError, spoken.AuthorizationError)  # redis-py calls these connection errors
_UNAVAILABLE: Final = (
    spoken.ConnectionError,
    spoken.TimeoutError,
    spoken.ReadOnlyError,
    spoken.OutOfMemoryError,
    spoken.ClusterDownError,
    spoken.TryAgainError,
    spoken.AskError,
)
_CODE: Final = re.compile(
    r"(?:^|\s-)(?:LOADING|READONLY|OOM|BUSY|MISCONF|NOREPLICAS|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|UNBLOCKED)\b"
)
_ECHO: Final = re.compile(r",? with args beginning with:.*", re.DOTALL)  # a server without HELLO repeats the password
_SCRIPT: Final = re.compile(r"\.? script: [0-9a-f]{40}, on @user_script:\s?\d+\.?")  # of no use to an operator
_CONNECTING: Final = re.compile(r"Error (?:-?\d+ )?connecting to (?P<where>.+?)\. (?P<reason>.+?)\.?")
_OUT_OF_MEMORY: Final = "command not allowed when used memory"
_LONGEST: Final = 300

_let_in: Final[WeakSet[Any]] = WeakSet()


class _Translation:
    """The context of :func:`translated`. A generator in its place would cost more than the rest of many calls."""

    __slots__ = ("_client",)

    def __init__(self, client: Redis | None) -> None:
        self._client = client

    def __enter__(self) -> None:
        """Nothing is to be done."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raise the program's own error in place of this one."""
        # redis-py leaks AttributeError and others from a connection that was closed under it, and after any of them
        # it is unknown what was sent. Cancellation is not an Exception and passes.
        if isinstance(error, Exception) and not isinstance(error, PollerError):
            raise _ours(error, address_of(self._client), known=self._client in _let_in) from _cause(error)


def translated(client: Redis | None = None) -> _Translation:
    """A context around calls to Redis that raises the program's own errors only.

    Args:
        client: whose address the message names.

    Raises:
        StoreUnavailable: trying again may help. Whether the command was carried out is not known.
        StoreRefused: the server will say the same again. redis-py's own error is the ``__cause__``.
    """
    return _Translation(client)


def let_in(client: Redis) -> None:
    """Record that the server has accepted the password of this client."""
    _let_in.add(client)


def _ours(raised: Exception, address: str, *, known: bool) -> StoreError:
    error = _first(raised)
    text = f"{address}: {described(error, address)}"
    if isinstance(error, _REFUSED):
        return StoreUnavailable(text) if known else StoreRefused(text)
    if isinstance(error, spoken.NoScriptError):  # redis-py has loaded it, and run it again
        return StoreUnavailable(f"{address}: the server forgot a script between loading and running it")
    if isinstance(error, (*_UNAVAILABLE, OSError)):
        return StoreUnavailable(text)
    if isinstance(error, (spoken.ResponseError, spoken.DataError)):
        return StoreUnavailable(text) if _CODE.search(str(error)) else StoreRefused(text)
    return StoreUnavailable(f"{address}: connection broken ({type(error).__name__}: {described(error, address)})")


def _first(error: Exception) -> Exception:
    """On a unix socket redis-py hides what the server said to the handshake behind a connection error."""
    hidden = error.__cause__
    return hidden if type(error) is spoken.ConnectionError and isinstance(hidden, spoken.RedisError) else error


def address_of(client: Redis | None) -> str:
    """The address that a client connects to, without anything secret."""
    if client is None:
        return "Redis"
    place: str | None = getattr(client.connection_pool, "place", None)  # of several servers
    if place is not None:
        return place
    where = client.connection_pool.connection_kwargs
    return str(where["path"]) if "path" in where else f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"


def described(error: Exception, address: str) -> str:
    """What an error of redis-py says, in one line without arguments of commands; ``address``: where, if it is named."""
    text = " ".join(_ECHO.sub("", _SCRIPT.sub("", str(error))).split())
    if isinstance(error, spoken.OutOfMemoryError) or _OUT_OF_MEMORY in text:
        return "its memory is full (maxmemory): raise maxmemory, or lower retention"
    line = tls_words(text) or _connecting(text, address) or text or type(error).__name__
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _connecting(text: str, address: str) -> str | None:
    """What redis-py's text about a connection that cannot be made says; None for any other text."""
    found = _CONNECTING.fullmatch(text)
    if found is None:
        return None
    where = "" if found["where"] == address else f" to {found['where']}"  # of several servers, it names one
    return f"cannot connect{where}: {found['reason']}"


def _cause(error: Exception) -> Exception | None:
    """The error itself, unless its text repeats arguments of a command: a traceback would show them."""
    return None if _ECHO.search(str(error)) else error


FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""The options of a URL that name files."""

_SPOKEN: Final = re.compile(r".*\[SSL: (?P<code>\w+)\] (?P<reason>.*?)\.?(?: \(_ssl\.c:\d+\)\.?)?$", re.DOTALL)
_UNTRUSTED: Final = "let the option ssl_ca_certs of redis.url name the certificate of the authority that issued it"
_ADVICE: Final = (
    ("not valid for", "let redis.url name the host that it was issued for"),
    ("expired", "renew the server's certificate"),
    ("not yet valid", "set the clocks"),
)
_PLAIN: Final = "does the server speak TLS on this port? Without, it is redis:// and not rediss://"


def tls_words(text: str) -> str | None:
    """What an error text of OpenSSL means for an operator; None for any other text."""
    found = _SPOKEN.fullmatch(text)
    if found is None:
        return None
    if found["code"] == "CERTIFICATE_VERIFY_FAILED":
        reason = found["reason"].removeprefix("certificate verify failed: ")
        advice = next((advice for word, advice in _ADVICE if word in reason), _UNTRUSTED)
        return f"its certificate is not accepted: {reason}; {advice}"
    return f"TLS fails: {found['reason']}; {_PLAIN}"


def check_files(arguments: Mapping[str, Any], *, shown: str) -> None:
    """Check that the files named by a URL can be read.

    Args:
        arguments: of a connection, as :func:`poller.redis.url.arguments` gives them.
        shown: the URL, as it may be shown.

    Raises:
        ConfigurationError: one cannot.
    """
    for name in FILES:
        if path := arguments.get(name):
            try:
                Path(path).open("rb").close()
            except OSError as error:
                at = shown_path(Path(path), error)
                raise ConfigurationError(f"redis.url {shown}: {name} {at}: {error.strerror}") from None
