"""Who may change something: whoever has the admin token.

Law: without ``http.admin_token_file`` nobody changes anything here; with it, the token is the file's content as it is
now, and the file is held to what every secret's file is held to. The comparison tells nothing about the token, the log
who was wrong and never with what.

Reading is open to whoever reaches the service.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import structlog
from starlette.requests import Request
from starlette.responses import Response

from poller.credentials.secret_file import SecretFile
from poller.errors import CredentialUnusable
from poller.hiding import one_line
from poller.service.web.guesses import Guesses
from poller.service.web.problems import Refused
from poller.service.web.routing import Endpoint

_CLOSED: Final = (
    "nothing can be changed over HTTP here: set http.admin_token_file to a file with a token and start the daemon "
    "again, or use the command line (poller pause, resume, resync, release, subscriptions)"
)
_MISSING: Final = "this changes something: send Authorization: Bearer with the content of http.admin_token_file"
_WRONG: Final = "the token is not the content of http.admin_token_file"
_CHALLENGE: Final = 'Bearer realm="poller"'

_log = structlog.get_logger("poller.web")


class Admission:
    """The door of everything that changes something."""

    def __init__(self, file: Path | None, *, clock: Callable[[], float]) -> None:
        """Take the file that holds the token, if there is one, and seconds that only go forward."""
        self._file = None if file is None else SecretFile(file, "admin token")
        self._guesses = Guesses(clock)
        if self._file is not None:
            with suppress(Refused):  # what is wrong with it is told at the start, and again when it is needed
                self._token(self._file)

    def only(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint, for those who have the token."""

        async def admitted(request: Request) -> Response:
            self.check(request)
            return await endpoint(request)

        return admitted

    def check(self, request: Request) -> None:
        """Nothing, where the request brings the token.

        Raises:
            Refused: it does not, or there is none that it could bring.
        """
        if self._file is None:
            raise Refused(403, _CLOSED)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refused(401, _MISSING, headers={"www-authenticate": _CHALLENGE})
        if not _same(token.strip(), self._token(self._file)):
            self._refuse(request)

    def _refuse(self, request: Request) -> NoReturn:
        """Whoever guesses is told so, and heard of once a while."""
        address = request.client.host if request.client else ""
        if wait := self._guesses.wait(address):
            said = "too many wrong tokens from this address"
            raise Refused(429, said, headers={"retry-after": str(math.ceil(wait))})
        self._guesses.wrong(address)
        _log.warning("wrong admin token", client=address, path=one_line(request.url.path), method=request.method)
        raise Refused(401, _WRONG, headers={"www-authenticate": f'{_CHALLENGE}, error="invalid_token"'})

    def _token(self, file: SecretFile) -> str:
        try:
            return file.text()
        except CredentialUnusable as error:
            _log.warning("nothing can be changed over HTTP", error=str(error))
            raise Refused(503, "the admin token cannot be read; the log says why") from None


def _same(one: str, other: str) -> bool:
    """In the same time wherever they differ, and however long they are."""
    digests = (hashlib.sha256(text.encode()).digest() for text in (one, other))
    return hmac.compare_digest(*digests)
