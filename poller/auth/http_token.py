"""Tokens of the HTTP service: the read token and the admin token.

**Invariants**

- A token comes from the environment or from a file. The rules for secret files hold.
- Comparison takes constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from poller.auth.base import SecretFile
from poller.config.http import is_address
from poller.config.load import ADMIN_TOKEN, READ_TOKEN
from poller.config.settings import HttpSettings
from poller.errors import CredentialUnusable

LOCALHOST: Final = "localhost"
CLOSED: Final = (
    f"set http.read_token_file to a file with a token (or {READ_TOKEN} or {READ_TOKEN}_FILE in the environment) and "
    "restart the daemon; with http.open_reads = true, everyone who reaches the port may read"
)


class ServiceToken:
    """A bearer token of this service."""

    def __init__(self, what: str, file: Path | None, literal: str = "") -> None:
        """Begin with the name for messages, the file, and the environment's value, which takes precedence; "": none."""
        self.what = what
        self._literal = literal.strip()
        self._file = None if file is None or self._literal else SecretFile(file, what)

    def __bool__(self) -> bool:
        """Whether a token is set, readable or not."""
        return bool(self._literal) or self._file is not None

    def text(self) -> str:
        """The present token.

        Raises:
            CredentialUnusable: no token is set, or its file cannot be used.
        """
        if self._file is not None:
            return self._file.text()
        if not self._literal:
            raise CredentialUnusable(f"no {self.what} is set")
        return self._literal

    def matches(self, brought: str) -> bool:
        """Whether this is the token.

        Raises:
            CredentialUnusable: its file cannot be used.
        """
        return bool(self) and _same(brought, self.text())


def read_token(settings: HttpSettings, environ: Mapping[str, str]) -> ServiceToken:
    """The token that permits reading."""
    return ServiceToken("read token", settings.read_token_file, environ.get(READ_TOKEN, ""))


def admin_token(settings: HttpSettings, environ: Mapping[str, str]) -> ServiceToken:
    """The token that permits changes and reading."""
    return ServiceToken("admin token", settings.admin_token_file, environ.get(ADMIN_TOKEN, ""))


def is_closed(settings: HttpSettings, environ: Mapping[str, str]) -> bool:
    """Whether requests from other machines can read nothing, even with a token."""
    everybody = settings.open_reads or settings.bind is None or is_loopback(settings.bind.host)
    return not everybody and not read_token(settings, environ)


def is_loopback(host: str) -> bool:
    """Whether this is a loopback address or ``localhost``; other names are not resolved."""
    return host.lower() == LOCALHOST or (is_address(host) and ip_address(host).is_loopback)


def _same(one: str, other: str) -> bool:
    """Whether two texts are equal, in a time that does not depend on their content."""
    digests = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (one, other))
    return hmac.compare_digest(*digests)
