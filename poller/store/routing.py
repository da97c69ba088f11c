"""What goes to the servers of a cluster: a command after ASKING, a script, a pipeline.

Law: ``ASKING`` and its command go down one connection in one write. A script touches one slot. A pipeline may touch
many, and is sent to all of their primaries at once; its commands keep their order as long as their slot does not move.
A transaction touches one slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.commands.core import AsyncScript
from redis.exceptions import AskError, NoScriptError, ResponseError, TryAgainError
from redis.typing import EncodableT, KeyT

from poller.store.slots import Address, slot_of

if TYPE_CHECKING:
    from poller.store.cluster import ClusterClient

Command = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments, and redis-py's options."""


class RoutedScript(AsyncScript):
    """Run by its digest, or by its text where a server does not know it: which teaches that server, too."""

    async def __call__(
        self,
        keys: Sequence[KeyT] | None = None,
        args: Iterable[EncodableT] | None = None,
        client: Redis | None = None,  # type: ignore[override]  # never another's
    ) -> Any:
        """What it answers."""
        one = cast("ClusterClient", client or self.registered_client)
        given = (len(keys or ()), *(keys or ()), *(args or ()))
        try:
            return await one.execute_command("EVALSHA", self.sha, *given)
        except NoScriptError:
            return await one.execute_command("EVAL", self.script, *given)


class RoutedPipeline(Pipeline):
    """Collects as redis-py's does, and sends to whom it may concern."""

    def __init__(self, client: ClusterClient, transaction: bool, shard_hint: str | None) -> None:  # noqa: FBT001 -- as there
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002 -- as there
        """The answers, in order.

        Raises:
            redis.exceptions.RedisError: a server did not answer, or with ``raise_on_error`` the first error answered.
        """
        commands: Sequence[Command] = self.command_stack
        self.command_stack = []
        if not commands:
            return []
        answers = await (self._together(commands) if self.is_transaction else self._spread(commands))
        if raise_on_error:
            self.raise_first_error(list(commands), answers)
        return answers

    async def _together(self, commands: Sequence[Command]) -> list[Any]:
        async def send(node: Redis, asking: bool) -> list[Any]:  # noqa: FBT001 -- as everywhere here
            if asking:
                raise TryAgainError("a transaction waits until its slot has moved")
            return await _piped(node, commands, transaction=True)

        slots = (slot_of(arguments) for arguments, _ in commands)
        return await self._client.routed(next((one for one in slots if one is not None), None), send)

    async def _spread(self, commands: Sequence[Command]) -> list[Any]:
        nodes = self._client.nodes
        shares: dict[Address, list[int]] = {}
        for place, (arguments, _) in enumerate(commands):
            shares.setdefault(await nodes.primary_of(slot_of(arguments)), []).append(place)
        told = await asyncio.gather(
            *(self._share(where, [commands[place] for place in places]) for where, places in shares.items()),
            return_exceptions=True,  # else those that are still under way would be left behind
        )
        answers: list[Any] = [None] * len(commands)
        for places, share in zip(shares.values(), told, strict=True):
            if isinstance(share, BaseException):
                raise share
            for place, answer in zip(places, share, strict=True):
                redirected = isinstance(answer, (AskError, TryAgainError))
                answers[place] = await self._again(commands[place]) if redirected else answer
        return answers

    async def _share(self, where: Address, commands: Sequence[Command]) -> list[Any]:
        try:
            return await _piped(self._client.nodes[where], commands, transaction=False)
        except Exception:
            self._client.nodes.failed(where)
            raise

    async def _again(self, command: Command) -> Any:
        """One that was not carried out, for its slot has moved or is moving."""
        arguments, options = command
        try:
            return await self._client.execute_command(*arguments, **options)
        except ResponseError as error:
            return error


async def asked(node: Redis, command: Command, *, asking: bool) -> Any:
    """The answer of one server; ``asking``: for a slot that is on its way there."""
    if not asking:
        return await node.execute_command(*command[0], **command[1])  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    _, answer = await _piped(node, [(("ASKING",), {}), command], transaction=False)
    if isinstance(answer, Exception):
        raise answer
    return answer


async def _piped(node: Redis, commands: Sequence[Command], *, transaction: bool) -> list[Any]:
    pipeline = node.pipeline(transaction=transaction)
    for arguments, options in commands:
        pipeline.execute_command(*arguments, **options)
    return await pipeline.execute(raise_on_error=False)
