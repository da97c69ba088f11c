"""What can go wrong with TLS on the way to Redis, said so that one knows what to change.

Pure but for :func:`check_files`, which looks whether files are there. Refuses to know: connections.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from poller.errors import ConfigurationError

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
    """What OpenSSL's own words mean for an operator; None where there are none of it in the text."""
    found = _SPOKEN.fullmatch(text)
    if found is None:
        return None
    if found["code"] == "CERTIFICATE_VERIFY_FAILED":
        reason = found["reason"].removeprefix("certificate verify failed: ")
        advice = next((advice for word, advice in _ADVICE if word in reason), _UNTRUSTED)
        return f"its certificate is not accepted: {reason}; {advice}"
    return f"TLS fails: {found['reason']}; {_PLAIN}"


def check_files(arguments: Mapping[str, Any], *, shown: str) -> None:
    """See to it that the files which a URL names can be read.

    Args:
        arguments: of a connection, as :func:`poller.store.address.arguments` gives them.
        shown: the URL, as it may be shown.

    Raises:
        ConfigurationError: one cannot.
    """
    for name in FILES:
        if path := arguments.get(name):
            try:
                Path(path).open("rb").close()
            except OSError as error:
                raise ConfigurationError(f"redis.url {shown}: {name} {path}: {error.strerror}") from error
