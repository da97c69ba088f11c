"""All profiles, in the order in which they apply: from the records outwards to the wire.

Law: the order is the table's, not the command line's, so that any set of them composes: what reads an envelope is
applied before what makes it unreadable.
"""

from __future__ import annotations

from typing import Final

from poller.sandbox.profiles import bodies, contents, endings, paging, records, refusals, tokens

PROFILES: Final = {
    profile.name: profile
    for profile in (
        *contents.CONTENT_PROFILES,
        *paging.PAGING_PROFILES,
        *endings.ENDING_PROFILES,
        *tokens.TOKEN_PROFILES,
        *refusals.ASKED,
        *records.RECORD_PROFILES,
        *bodies.BODY_PROFILES,
        *refusals.TAGGED,
        *bodies.BROKEN,
    )
}
"""Every profile by its name."""

ORDER: Final = {name: place for place, name in enumerate(PROFILES)}
"""The place of each; lower ones are applied first."""
