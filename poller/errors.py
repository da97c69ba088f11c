"""Every error of the program, by whose fault it is.

The fault decides what happens next.

* :class:`ConfigurationError`: the operator's. Nothing is tried again; the program says what to change and exits with 2.
* :class:`SourceError`: the API's. The round fails, nothing moves, the next interval tries again.
* :class:`AddressRefused`: the sink's, whose name leads where no event may go. The delivery fails, nothing is sent.
* :class:`StoreError`: Redis' or the path to it. The commit is tried again where that is safe, else the round fails.

A message is one line that a tired reader understands without the code. It never holds a secret.
"""

from __future__ import annotations


class PollerError(Exception):
    """Anything that this program raises on purpose. ``str()`` is fit to be shown to an operator."""


class ConfigurationError(PollerError):
    """The configuration or the command line cannot be used. Exit code 2."""


class AddressTaken(ConfigurationError):
    """Another process listens on the address already."""


class SubscriptionUnknown(ConfigurationError):
    """There is no subscription of this id."""


class SubscriptionTaken(ConfigurationError):
    """There is a subscription of this id already."""


class SubscriptionFiled(ConfigurationError):
    """The subscription is in the configuration file, or comes from there, and can only be changed there."""


class SourceError(PollerError):
    """The API did not give a usable answer. The round fails; token and snapshots stay."""


class SourceUnavailable(SourceError):
    """No answer, or one that may be better later: network, timeout, 408, 425, 429, 5xx."""


class SourceNotAsked(SourceUnavailable):
    """The API has not answered others of the source's requests, so this one was not made."""


class SourceRefused(SourceError):
    """The API understood and said no: 401, 403, 404, 400 and the like.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class CredentialUnusable(SourceError):
    """The credential for the API cannot be had: its file or variable is missing, empty or malformed."""


class SourceNonsense(SourceError):
    """An answer of status 200 that is not the list envelope: cut, not JSON, too large, looping."""


class RoundTimeExceeded(SourceError):
    """A round that has taken as long as it may (``max_round``). All that it has read counts."""


class RoundHeld(SourceError):
    """A reading that would remove too much. All else of it counts; the removals wait for ``poller release``."""


class OriginHeld(RoundHeld):
    """The feed's records would come from another API than the known ones. Nothing was read or published."""


class AddressRefused(PollerError):
    """The sink's host is, or has been resolved to, an address that it may not have. Nothing was connected to."""


class StoreError(PollerError):
    """Redis did not do what was asked."""


class StoreUnavailable(StoreError):
    """No connection, a timeout, or a server that is loading, read-only or out of memory. Trying again may help."""


class StoreRefused(StoreError):
    """Redis understood and said no for good: wrong password, missing permission, a key of another type."""


class Fenced(StoreError):
    """This process has lost the feed's lease; another process may be writing. The commit wrote nothing."""


class Stale(StoreError):
    """The feed's state is not the one this round was planned on. The commit wrote nothing."""


class GroupGone(StoreError):
    """The stream has no such consumer group: it was destroyed, or the store has lost it."""
