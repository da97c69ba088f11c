"""The names of everything that is kept in Redis.

All keys of a feed share the hash tag ``{SOURCE/NAME}``: one script may touch them together, on a cluster too. Public
is ``…:events`` alone; the rest is the daemon's own and may change with its version:

=================  ======  ==========================================================================================
key ends in        type    holds
=================  ======  ==========================================================================================
``events``         STREAM  one field ``data`` an entry: the CloudEvent in structured JSON
``state``          HASH    generation, sequence, digest of the last commit, and the marks of :mod:`poller.store.state`
``snapshots``      HASH    record key to snapshot (:mod:`poller.store.snapshots`)
``dictionaries``   HASH    number to the compression dictionary that snapshots name
``lease``          STRING  the nonce of the process that may write; expires
``quarantine``     STREAM  records that could not be used: ``raw`` (cut), ``reason``, ``digest`` (of all of it); bounded
``rejected``       ZSET    digests of what the quarantine was given, by time, so that it is given each thing once
``qualifications``  ZSET   ids seen in the feed's records, by the time of the last change (milliseconds)
``listings``       HASH    qualification to what is kept of its listing (:mod:`poller.store.listings`)
=================  ======  ==========================================================================================
"""

from __future__ import annotations

import msgspec


class FeedKeys(msgspec.Struct, frozen=True):
    """The keys of one feed."""

    events: str
    state: str
    snapshots: str
    dictionaries: str
    lease: str
    quarantine: str
    rejected: str
    qualifications: str
    listings: str

    @classmethod
    def of(cls, prefix: str, feed: str) -> FeedKeys:
        """The keys of the feed ``SOURCE/NAME`` under a prefix."""
        return cls(*(f"{prefix}:{{{feed}}}:{name}" for name in cls.__struct_fields__))
