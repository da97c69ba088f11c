"""What can be configured and this version does not do yet.

Law: nothing that somebody set is ignored without a word: what is not done is told, once for each table.

Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from poller.config.settings import Settings

UNSERVED: Final = "this version serves nothing yet that needs admin_token_file"


class NotYet(msgspec.Struct, frozen=True):
    """A table that is set and does nothing: its name, and what does not happen."""

    table: str
    text: str


def not_yet(settings: Settings) -> tuple[NotYet, ...]:
    """The tables that were set, in the file or by the environment, and do nothing."""
    if settings.http.admin_token_file is not None:
        return (NotYet("http", UNSERVED),)
    return ()
