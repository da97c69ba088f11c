"""A token that a command prints: the operator's own program knows how to come by it.

Law: the first line of standard output is the token, and nothing else of it is used. What goes wrong is told in one
line, without anything that the program printed: a complaint may quote a token that was good a minute ago. Only the
program's name is shown, never its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from poller.credentials.bearer import checked
from poller.credentials.issued import Issued
from poller.credentials.program import Ended, run
from poller.errors import CredentialUnusable

TIME_LIMIT: Final = timedelta(seconds=10)
KEPT_FOR: Final = timedelta(minutes=5)


class TokenCommand:
    """An issuer: each token is one run of the command."""

    def __init__(self, command: Sequence[str], *, within: timedelta = TIME_LIMIT) -> None:
        """Take the program with its arguments, and how long a run may take."""
        self.origin = f"the command {Path(command[0]).name}"
        self._command = tuple(command)
        self._within = within

    async def issue(self) -> Issued:
        """A new token, good until the API refuses it or :data:`KEPT_FOR` is over.

        Raises:
            CredentialUnusable: the command cannot be run, fails, takes too long, or prints no token.
        """
        try:
            ended = await run(self._command, within=self._within)
        except TimeoutError:
            seconds = self._within.total_seconds()
            raise CredentialUnusable(f"{self.origin} has not ended within {seconds:g} s and was killed") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its arguments cannot be passed on"
            raise CredentialUnusable(f"{self.origin} cannot be run: {reason}") from None
        return Issued(self._token(ended), renew_after=KEPT_FOR, valid_for=KEPT_FOR)

    def _token(self, ended: Ended) -> str:
        if ended.code:
            how = f"failed with exit code {ended.code}" if ended.code > 0 else f"was ended by signal {-ended.code}"
            raise CredentialUnusable(f"{self.origin} {how}{_complaint(ended)}")
        first = ended.out.partition(b"\n")[0].decode("utf-8", "replace")
        if not first.strip():
            raise CredentialUnusable(f"{self.origin} has printed no token{_complaint(ended)}")
        return checked(first, f"the first line that {self.origin} has printed")


def _complaint(ended: Ended) -> str:
    """That there is more to read, and where: what a command says of its failure may hold an older token."""
    if not ended.err.strip():
        return ""
    return "; what it says on standard error may hold a secret and is not shown: run it by hand"
