"""What a process says before its first round of credentials that are not where they are said to be.

Law: a source whose token, or whose client secret, is missing is named in an error of its own, with the variable or the
file and what to do; nothing is shown of a secret, and nobody is stopped by it. What only another program or server can
tell is not asked here: rounds ask, and say what came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import structlog

from poller.config.auth import AuthSettings
from poller.config.sources import SourceSettings
from poller.credentials.bearer import EnvironmentToken, FileToken
from poller.credentials.secret_file import SecretFile
from poller.errors import CredentialUnusable

_VARIABLE: Final = "set it and start poller again; until then the source's rounds fail"
_FILE: Final = "mend it; until then the source's rounds fail, and then they go on without a restart"

_daemon_log = structlog.get_logger("poller.daemon")


async def look_for_credentials(sources: Iterable[SourceSettings], environ: Mapping[str, str]) -> None:
    """Say which of them are missing, or cannot be used."""
    for source in sources:
        try:
            await _look(source.auth, environ)
        except CredentialUnusable as error:
            advice = _FILE if source.auth.token_env is None else _VARIABLE
            _daemon_log.error("source without a credential", source=source.name, error=str(error), advice=advice)


async def _look(auth: AuthSettings, environ: Mapping[str, str]) -> None:
    if auth.token_file is not None:
        await FileToken(auth.token_file).token()
    elif auth.token_env is not None:
        await EnvironmentToken(auth.token_env, environ).token()
    elif auth.oauth2 is not None:
        SecretFile(auth.oauth2.client_secret_file, "client secret").text()
