"""All errors of the program, grouped by fault, because the fault decides what happens next.

* :class:`ConfigurationError`: the operator's. No retry; the program says what to change and exits with 2.
* :class:`SourceError`: the API's. The round fails, the delta token stays, the next round tries again.
* :class:`AddressRefused`: the sink's; its host has a forbidden address. The delivery fails, nothing is sent.
* :class:`StoreError`: Redis' or the network's. The commit is retried where that is safe, else the round fails.

**Invariants**

- A message is one line that an operator understands without the code.
- A message never holds a secret.
"""

from __future__ import annotations


class PollerError(Exception):
    """The base of all errors that this program raises. ``str()`` is fit for operators."""


class ConfigurationError(PollerError):
    """The configuration or the command line cannot be used. Exit code 2."""


class AddressTaken(ConfigurationError):
    """Another process listens on the address already."""


class SubscriptionUnknown(ConfigurationError):
    """No subscription has this id."""


class SubscriptionTaken(ConfigurationError):
    """A subscription with this id exists already."""


class SubscriptionFiled(ConfigurationError):
    """The subscription comes from a configuration file and can only be changed there."""


class SubscriptionResumed(ConfigurationError):
    """The subscription was resumed while it was being removed."""


class SourceError(PollerError):
    """The API did not give a usable answer. The round fails; token and snapshots stay."""


class SourceUnavailable(SourceError):
    """The API did not answer, or with an error that may pass: network, timeout, 408, 425, 429, 5xx."""


class SourceNotAsked(SourceUnavailable):
    """The API has not answered other requests of the source, so this one was not sent."""


class SourceRefused(SourceError):
    """The API refused the request: 401, 403, 404, 400 and the like.

    Attributes:
        status: the HTTP status.
        age: for how many seconds a cache on the way had kept the answer; 0 where none did or said so.
    """

    def __init__(self, message: str, *, status: int, age: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.age = age


class CredentialUnusable(SourceError):
    """A credential cannot be read: its file or variable is missing, empty or malformed."""


class SourceNonsense(SourceError):
    """A response with status 200 is not a list envelope: truncated, not JSON, too large, looping."""


class RoundTimeExceeded(SourceError):
    """The round has reached ``max_round``. The pages read so far count."""


class RoundHeld(SourceError):
    """The round would remove too many records. Its other changes count; the removals wait for ``poller release``.

    Attributes:
        missing: how many; None where something else is held.
    """

    def __init__(self, message: str, *, missing: int | None = None) -> None:
        super().__init__(message)
        self.missing = missing


class OriginHeld(RoundHeld):
    """The feed would be read from another API than its known records. Nothing was read or published."""


class AddressRefused(PollerError):
    """The sink's host is, or was resolved to, a forbidden address. No connection was opened."""


class StoreError(PollerError):
    """A command to Redis failed."""


class StoreUnavailable(StoreError):
    """No connection, a timeout, or a server that is loading, read-only or out of memory. A retry may help."""


class Converting(StoreUnavailable):
    """The feed's snapshots are being converted to another form. A retry helps once its round has ended."""


class StoreRefused(StoreError):
    """Redis refused the command permanently: wrong password, missing permission, a key of another type."""


class Fenced(StoreError):
    """This process has lost the feed's lease; another process may be writing. The commit wrote nothing."""


class Stale(StoreError):
    """The feed's state has changed since the commit was planned. The commit wrote nothing."""


class GroupGone(StoreError):
    """The stream has no such consumer group: it was destroyed, or the store has lost it."""


class ErasureUnknown(StoreError):
    """A record was erased that this process did not know of when it wrote. Nothing was written."""


class ErasureSuperseded(StoreError):
    """Another erasure of the same record has begun, and goes on with what this one has counted."""


def fault_text(error: Exception) -> str:
    """An unexpected exception in words. Its own text may be a secret."""
    return f"a fault of the program, see its log: {type(error).__name__}"
