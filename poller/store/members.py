"""The list of live processes that share the work, with its version.

A process sends a beat every third of its lease's lifetime. It counts as gone when no beat came for the whole lifetime,
by the server's clock alone. For forms of snapshots it counts for two lifetimes more, unless it has left in order: one
that was only slow must still be able to read the feeds when it is back.

**Invariants**

- One script reads and changes the list. Every call removes the processes that are gone, so all see the same list.
- The scripts of others may be sent in the same request: they need not ask on their own as often as this module does.
- The version rises in the same instant in which the list changes or a process releases leases. An unchanged version
  means an unchanged list, so while nothing happens one number is read. That also holds where the store goes back to an
  older copy, for the version follows the server's clock.
- Leases and their assignment are unknown here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Final, cast

import msgspec
from redis.asyncio import Redis

from poller.errors import StoreError
from poller.redis.errors import translated
from poller.store.clock import StoreClock
from poller.store.keys import MemberKeys
from poller.store.scripts import ScriptBatch, ScriptCall, ScriptQuestion, lua

MEET: Final = lua("meet_members")


THERE: Final = lua("live_members")


class MemberConfiguration(msgspec.Struct, frozen=True):
    """The part of a process' configuration that others compare with their own.

    Attributes:
        feeds: those that it has, ``SOURCE/NAME``; None where it does not say, so that it may have any.
        sources: digest of the ``base_url`` of each source, by name.
        sinks: digest of the ``sink`` of each subscription of the file, by id; None where it does not say.
        wanted: digest of the ``feeds`` of each of them, likewise; an earlier version of the program does not say.
        snapshots: the latest form of snapshots that it reads; an earlier version reads the first and does not say.
    """

    feeds: tuple[str, ...] | None = None
    sources: Mapping[str, str] = {}
    sinks: Mapping[str, str] | None = None
    wanted: Mapping[str, str] = {}
    snapshots: int = 1


UNSAID: Final = MemberConfiguration()
"""Of a process that says nothing, for another version runs there."""


class ListedSubscriptions(msgspec.Struct, frozen=True):
    """The subscriptions in the files of the live processes.

    Attributes:
        ids: those that a live process lists.
        is_complete: whether each live process says what it lists; another one may list any.
    """

    ids: frozenset[str] = frozenset()
    is_complete: bool = False


class MemberList(msgspec.Struct, frozen=True):
    """The list of one version.

    Attributes:
        version: compare it for being another one: a store may lose its last writes.
        roles: what each process does, by its name.
        configurations: what each says of its configuration, likewise.
    """

    version: str = ""
    roles: Mapping[str, frozenset[str]] = {}
    configurations: Mapping[str, MemberConfiguration] = {}

    def doing(self, role: str) -> tuple[str, ...]:
        """The names of those that do this, in their order."""
        return tuple(sorted(name for name, roles in self.roles.items() if role in roles))

    def listed(self, names: Iterable[str]) -> frozenset[str] | None:
        """The feeds that these processes list; None: any, for one of them does not say."""
        said = [self.configurations.get(name, UNSAID).feeds for name in names]
        listed = [feeds for feeds in said if feeds is not None]
        return frozenset(chain(*listed)) if len(listed) == len(said) else None

    def reads(self, form: int) -> bool:
        """Whether each of these processes says that it reads this form of snapshots."""
        return all(self.configurations.get(name, UNSAID).snapshots >= form for name in self.roles)

    @property
    def subscriptions(self) -> ListedSubscriptions:
        """The subscriptions of the files of all of them."""
        said = [self.configurations.get(name, UNSAID).sinks for name in self.roles]
        listed = [sinks for sinks in said if sinks is not None]
        return ListedSubscriptions(frozenset(chain(*listed)), is_complete=len(listed) == len(said) > 0)


class Members:
    """The list, as one process sees it. Each method may raise StoreError."""

    def __init__(
        self,
        client: Redis,
        keys: MemberKeys,
        *,
        name: str,
        ttl: timedelta,
        shebang: str = "",
        clock: StoreClock,
        configuration: MemberConfiguration = UNSAID,
    ) -> None:
        """Take where it is kept.

        Args:
            client: without retries of its own.
            keys: of the list.
            name: of this process.
            ttl: how long a beat lasts.
            shebang: the script's first line where the server knows it.
            clock: learns the store's time from each answer.
            configuration: of this process.
        """
        self.name = name
        self._clock = clock
        self._keys = (keys.version, keys.roles, keys.beats, keys.configurations)
        self._configuration = msgspec.json.encode(configuration)
        self._ttl_ms = int(ttl.total_seconds() * 1000)
        self._batch = ScriptBatch(client, shebang=shebang)

    async def read(
        self, known: MemberList, *, tell: bool = False, besides: Sequence[ScriptQuestion] = ()
    ) -> MemberList:
        """The current list; ``known`` itself where nothing has changed.

        Args:
            known: the list that is known.
            tell: make others read it, too.
            besides: is sent in the same request and settled, whatever becomes of the list.
        """
        return await self._met("look", known, tell=tell, besides=besides)

    async def beat(
        self, roles: Iterable[str], known: MemberList, *, tell: bool = False, besides: Sequence[ScriptQuestion] = ()
    ) -> MemberList:
        """Send a beat: this process lives, with these roles, for another term; else as :meth:`read`."""
        return await self._met("beat", known, roles, tell=tell, besides=besides)

    async def leave(
        self, known: MemberList, *, tell: bool = False, besides: Sequence[ScriptQuestion] = ()
    ) -> MemberList:
        """Remove this process from the list; else as :meth:`read`."""
        return await self._met("leave", known, tell=tell, besides=besides)

    async def _met(
        self,
        what: str,
        known: MemberList,
        roles: Iterable[str] = (),
        *,
        tell: bool,
        besides: Sequence[ScriptQuestion],
    ) -> MemberList:
        arguments = (
            what,
            self.name,
            self._ttl_ms,
            ",".join(sorted(roles)),
            known.version,
            "1" if tell else "",
            self._configuration if what == "beat" else b"",  # it may name thousands of feeds
        )
        asked = self._clock.asked()
        calls = [ScriptCall(MEET, self._keys, arguments), *(one.call for one in besides)]
        answer, *answers = await self._batch.send(calls)
        for question, one in zip(besides, answers, strict=True):
            question.settle(one)
        if isinstance(answer, StoreError):
            raise answer
        version, now, *rest = answer
        self._clock.learn(int(now), asked=asked)
        if version.decode() == known.version:
            return known
        return _seen(version.decode(), *rest)


async def members_now(client: Redis, keys: MemberKeys) -> dict[str, frozenset[str]]:
    """The roles of each live process, by its name. Changes nothing.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    return dict((await members_seen(client, keys)).roles)


async def is_any_there(client: Redis, keys: MemberKeys, *, role: str) -> bool:
    """Whether a live process has this role; True also for a user who may not ask that. Changes nothing."""
    try:
        return any(role in roles for roles in (await members_now(client, keys)).values())
    except StoreError:
        return True


async def members_seen(client: Redis, keys: MemberKeys) -> MemberList:
    """The live processes, without the version of the list. Changes nothing.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    alive, _ = await _there(client, keys)
    return alive


async def every_member_reads(client: Redis, keys: MemberKeys, form: int) -> bool:
    """Whether each process says that it reads this form of snapshots; False also if that cannot be asked.

    Those that have fallen silent a short time ago count, too.
    """
    try:
        alive, silent = await _there(client, keys)
    except StoreError:
        return False
    return alive.reads(form) and silent.reads(form)


async def _there(client: Redis, keys: MemberKeys) -> tuple[MemberList, MemberList]:
    """The live processes, and those that have fallen silent a short time ago, which have no roles."""
    names = (keys.roles, keys.beats, keys.configurations)
    with translated(client):
        alive, silent, roles, configurations = cast("list[list[bytes]]", await client.eval(THERE, 3, *names))
    done, said = _done(roles), _said(configurations)
    return _of(alive, done, said), _of(silent, {}, said)


def _of(
    names: Iterable[bytes], done: Mapping[str, frozenset[str]], said: Mapping[str, MemberConfiguration]
) -> MemberList:
    listed = [name.decode("utf-8", "replace") for name in names]
    return MemberList(
        roles={name: done.get(name, frozenset()) for name in listed},
        configurations={name: said.get(name, UNSAID) for name in listed},
    )


def _seen(version: str, roles: Sequence[bytes], configurations: Sequence[bytes]) -> MemberList:
    done, said = _done(roles), _said(configurations)
    return MemberList(version, done, {name: said.get(name, UNSAID) for name in done})


def _done(roles: Sequence[bytes]) -> dict[str, frozenset[str]]:
    return {
        name: frozenset(filter(None, text.decode("utf-8", "replace").split(",")))
        for name, text in _named(roles).items()
    }


def _said(configurations: Sequence[bytes]) -> dict[str, MemberConfiguration]:
    return {name: _configuration(text) for name, text in _named(configurations).items()}


def _named(answer: Sequence[bytes]) -> dict[str, bytes]:
    """The fields of a hash by name. A name that is no UTF-8 is no error, which would end all reading of the list."""
    return {name.decode("utf-8", "replace"): text for name, text in zip(answer[::2], answer[1::2], strict=True)}


def _configuration(text: bytes) -> MemberConfiguration:
    try:
        return msgspec.json.decode(text, type=MemberConfiguration)
    except ValueError:  # another version's, or no UTF-8
        return UNSAID
