"""One client's session with a simulated store: fakeredis' commands, and what the real server does otherwise.

fakeredis is the engine: its command functions and models do the work. This front calls them directly, and corrects them
where the real server (Valkey 9) answers differently:

- time is the store's own, to the microsecond, and stands still during a command;
- scripts run in :mod:`tests.simulation.store_scripts`; blocking reads wait in :mod:`tests.simulation.store`;
- ``INFO CONFIG ROLE MEMORY WAIT HELLO ACL`` answer as a server that has data and a configuration;
- commands that fakeredis lets change a stream without a word are seen to have written.

**Invariants**

- A reply follows from the databases, the words of the command and the store's clock: no hash order, no ``id``.
- A command that is refused has written nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import fakeredis._core._server
import fakeredis._helpers
import fakeredis.commands_mixins.connection_mixin
import fakeredis.commands_mixins.server_mixin
import fakeredis.model._client_info
import fakeredis.model._stream
from fakeredis import _msgs as messages
from fakeredis._commands import COMMANDS_WITH_SUB, SUPPORTED_COMMANDS, Key, Signature
from fakeredis._core import CommandItem, Database, FakeServer
from fakeredis._helpers import OK, QUEUED, SimpleError, SimpleString
from fakeredis._socket import FakeSocket
from fakeredis.model import Hash, XStream, ZSet, get_command_info

from tests.simulation.store_quick import QUICK, SLOW

if TYPE_CHECKING:
    from tests.simulation.store import SimulatedStore
    from tests.simulation.store_scripts import Script

VERSION: Final = "7.2.4"  # of Redis, with which it is compatible
VALKEY_VERSION: Final = "9.1.2"
WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
OUT_OF_MEMORY: Final = "OOM command not allowed when used memory > 'maxmemory'."
READ_ONLY: Final = "READONLY You can't write against a read only replica."
LOADING: Final = "LOADING Valkey is loading the dataset in memory"
NO_SCRIPT: Final = "NOSCRIPT No matching script."


class EngineTime:
    """The module ``time`` as fakeredis sees it: while a store carries out a command, its clock, else the system's."""

    def __init__(self) -> None:
        """Show the system's clock."""
        self.moment: float | None = None

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time() if self.moment is None else self.moment

    def __getattr__(self, name: str) -> Any:
        """All else that the module has."""
        return getattr(time, name)


TIME: Final = EngineTime()
for _module in (
    fakeredis._core._server,
    fakeredis._helpers,
    fakeredis.commands_mixins.connection_mixin,
    fakeredis.commands_mixins.server_mixin,
    fakeredis.model._client_info,
    fakeredis.model._stream,
):
    vars(_module)["time"] = TIME


class EngineDatabase(Database):
    """fakeredis' database without its lock, and with quick look-ups."""

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__(None)

    def wake_all(self) -> None:
        """Nobody waits in a thread."""

    def get(self, key: bytes, default: Any = None) -> Any:
        """The item, unless its time is over."""
        item = self._dict.get(key)
        if item is None:
            return default
        if item.expireat is not None and item.expireat < self.time:
            del self._dict[key]
            return default
        return item

    def __contains__(self, key: object) -> bool:
        """Whether there is such a key."""
        return self.get(key) is not None  # type: ignore[arg-type] # as the mapping has it


class Engine(FakeServer):
    """fakeredis' server with databases of that kind."""

    def __init__(self) -> None:
        """Begin with sixteen empty databases."""
        super().__init__(version=(9, 1, 2), server_type="valkey", config=dict(CONFIGURATION))
        self.dbs = {number: EngineDatabase() for number in range(16)}


CONFIGURATION: Final = {
    b"appendfsync": b"everysec",
    b"appendonly": b"yes",
    b"maxmemory": b"0",
    b"maxmemory-policy": b"noeviction",
    b"min-replicas-to-write": b"0",
    b"save": b"",
    b"stop-writes-on-bgsave-error": b"yes",
    b"stream-node-max-bytes": b"4096",
    b"stream-node-max-entries": b"100",
}


class Raw(bytes):
    """A reply that is RESP already."""

    __slots__ = ()


class Blocked(Exception):
    """A command waits for a write.

    Attributes:
        seconds: how long at most; None: for ever.
        ask: the reply, or what counts as none while there is nothing.
        keys: a write to one of them may end it.
    """

    def __init__(self, seconds: float | None, ask: Callable[[], Any], keys: Sequence[bytes]) -> None:
        """Take what it waits for."""
        super().__init__()
        self.seconds, self.ask, self.keys = seconds, ask, keys


@dataclass(slots=True, frozen=True)
class Command:
    """What is known of a command.

    Attributes:
        name: in small letters, with its subcommand behind a space.
        function: its method of a session; with a signature fakeredis', else ours, which takes all words as they are.
        signature: of fakeredis.
        is_write: it may change something.
        is_denied: while there is no memory left.
        while_loading: it is answered.
        in_scripts: it may be said by one.
        is_silent: fakeredis does not say what it has changed.
        keeps_empty: an empty value is no reason to delete the key.
        plan: a quick way to take its arguments.
        quick: a quick way for its usual form.
    """

    name: str
    function: Callable[..., Any]
    signature: Signature | None
    is_write: bool
    is_denied: bool
    while_loading: bool
    in_scripts: bool
    is_silent: bool
    keeps_empty: bool
    plan: Plan | None
    quick: Callable[[Session, Sequence[bytes]], Any] | None


class Plan(NamedTuple):
    """How to take the arguments of a command whose first argument is its only key.

    Attributes:
        least: how many arguments it has at least.
        step: how many more at a time; 0: none.
        kind: the type of the value at the key; None: any.
        missing: the reply where there is no such key; Key.UNSPECIFIED: the command says.
        default: makes the value where there is no such key.
        decoders: of the other arguments, by their places.
    """

    least: int
    step: int
    kind: type[Any] | None
    missing: object
    default: type[Any] | None
    decoders: Sequence[tuple[int, Callable[[bytes], Any]]]

    @classmethod
    def of(cls, signature: Signature) -> Plan | None:
        """The plan for a command; None: its arguments are of another form."""
        types: list[Any] = list(signature.fixed)
        if not types or not isinstance(types[0], Key) or any(one is not bytes for one in signature.repeat):
            return None
        first, *others = types
        if any(isinstance(one, Key) for one in others):
            return None
        decoders = [(place, one.decode) for place, one in enumerate(others, 1) if one is not bytes]
        makes = first.type_ not in {None, bytes} and messages.FLAG_DO_NOT_CREATE not in signature.flags
        default = first.type_ if makes else None
        return cls(len(signature.fixed), len(signature.repeat), first.type_, first.missing_return, default, decoders)


Method = TypeVar("Method", bound=Callable[..., Any])
_OWN: dict[str, Callable[..., Any]] = {}
_OWN_CONTAINERS: Final = frozenset({"memory"})
_CACHE: dict[bytes | tuple[bytes, bytes], Command | None] = {}
_AT_ONCE: Final = frozenset({"exec", "discard", "multi", "watch", "quit", "reset"})
"""Carried out where others are queued for EXEC."""
_SILENT: Final = frozenset({
    "xdel", "xack", "xreadgroup", "xclaim", "xautoclaim", "flushall", "flushdb", "swapdb", "move",
    "xgroup destroy", "xgroup setid", "xgroup createconsumer", "xgroup delconsumer",
})  # fmt: skip
_LOADABLE: Final = frozenset({"info", "role", "quit", "config get", "wait"})


def own(name: str) -> Callable[[Method], Method]:
    """Enter a method of the session as a command that takes all words as they are."""

    def entered(method: Method) -> Method:
        _OWN[name] = method
        return method

    return entered


def command_of(words: Sequence[bytes]) -> tuple[Command, Sequence[bytes]]:
    """The command, and its arguments.

    Raises:
        SimpleError: there is none.
    """
    first = words[0]
    found = _CACHE.get(first)
    if found is not None:
        return found, words[1:]
    name = first.decode("utf-8", "replace").lower()
    if (name in COMMANDS_WITH_SUB or name in _OWN_CONTAINERS) and len(words) > 1:
        found = _CACHE.get((first, words[1]))
        if found is None:
            found = _known(f"{name} {words[1].decode('utf-8', 'replace').lower()}")
            if found is None and (found := _known(name)) is None:
                told = words[1].decode("utf-8", "replace")
                raise SimpleError(f"ERR unknown subcommand '{told}'. Try {name.upper()} HELP.")
            _CACHE[first, words[1]] = found
        return found, words[2:]
    found = _known(name)
    if found is None:
        shown = "".join(f"'{word.decode('utf-8', 'replace')[:128]}' " for word in words[1:20])
        told = _one_line(f"ERR unknown command '{first.decode('utf-8', 'replace')}', with args beginning with: {shown}")
        raise SimpleError(told)
    _CACHE[first] = found
    return found, words[1:]


def _known(name: str) -> Command | None:
    function, signature = _OWN.get(name), None
    if function is None:
        signature = SUPPORTED_COMMANDS.get(name)
        function = None if signature is None else getattr(Session, signature.func_name, None)
        if signature is None or function is None or "valkey" not in signature.server_types:
            return None
    told = get_command_info(name.encode()) or get_command_info(name.replace(" ", "|").encode())
    flags = frozenset(told[2] if told else ())
    own_flags = frozenset(signature.flags if signature is not None else ())
    return Command(
        name,
        function,
        signature,
        is_write=b"write" in flags,
        is_denied=b"denyoom" in flags,
        while_loading=b"loading" in flags or name in _LOADABLE,
        in_scripts=b"noscript" not in flags and messages.FLAG_NO_SCRIPT not in own_flags,
        is_silent=name in _SILENT,
        keeps_empty=messages.FLAG_LEAVE_EMPTY_VAL in own_flags,
        plan=None if signature is None else Plan.of(signature),
        quick=QUICK.get(name),
    )


class Session(FakeSocket):
    """What the server knows of one client, and its commands."""

    def __init__(self, store: SimulatedStore, *, repeats: bool = False) -> None:
        """Begin in database 0.

        Args:
            store: whose client it is.
            repeats: it carries out again what others did before, so nothing is refused and nothing waits.
        """
        super().__init__(store.engine, 0, None, object)
        self.store = store
        self.is_resp3 = False
        self.is_restricted = False
        self._repeats = repeats
        self._words: Sequence[bytes] = ()
        self._queue: list[tuple[Command, Sequence[bytes], Sequence[bytes]]] | None = None
        self._spoilt = False

    @property
    def database(self) -> int:
        """The number of the one that is selected."""
        return int(self._db_num)

    @property
    def name(self) -> str:
        """What the client calls itself."""
        return str(self._client_info.get("name", ""))

    # Carrying out.

    def execute(self, words: Sequence[bytes]) -> Any:
        """The reply, in fakeredis' types or as :class:`Raw`.

        Raises:
            SimpleError: the reply is this error.
            Blocked: there is none yet.
        """
        try:
            command, arguments = command_of(words)
            if not self._repeats:
                self._admit(command, words)
            if self._queue is not None and command.name not in _AT_ONCE:
                if command.signature is not None:
                    command.signature.check_arity(arguments, self.version)
                self._queue.append((command, arguments, words))
                return QUEUED
        except SimpleError:
            self._spoilt = True  # counts where a transaction is under way
            raise
        self._words = words
        return self.run(command, arguments)

    def run(self, command: Command, arguments: Sequence[bytes]) -> Any:
        """Carry out a command that is admitted.

        Raises:
            SimpleError: the reply is this error.
            Blocked: there is none yet.
        """
        store, signature, plan = self.store, command.signature, command.plan
        store.calls[command.name] = store.calls.get(command.name, 0) + 1
        if command.quick is not None and (answer := command.quick(self, arguments)) is not SLOW:
            return answer
        if signature is None:
            return command.function(self, arguments)
        if plan is None:
            applied = signature.apply(arguments, self._db, self.version)
        else:
            applied = self._applied(signature, plan, arguments)
        if len(applied) == 1:
            return applied[0]
        values, items = applied
        try:
            result = command.function(self, *values)
        finally:
            for item in items:
                if item._modified:
                    item.writeback(not command.keeps_empty)
                    store.written[item.key] = None
        if command.is_silent and result:
            self._note(command, arguments, result)
        if isinstance(result, SimpleError):
            raise result
        return result

    def _applied(
        self, signature: Signature, plan: Plan, arguments: Sequence[bytes]
    ) -> tuple[Any] | tuple[list[Any], list[CommandItem]]:
        """As Signature.apply, in a third of its time."""
        more = len(arguments) - plan.least
        if more and (more < 0 or not plan.step or more % plan.step):
            signature.check_arity(arguments, self.version)
        values: list[Any] = list(arguments)
        key = values[0]
        found = self._db.get(key)
        if found is None and plan.missing is not Key.UNSPECIFIED:
            return (plan.missing,)
        for place, decode in plan.decoders:
            values[place] = decode(values[place])
        default = None
        if found is None:
            default = plan.default() if plan.default is not None else None
        elif plan.kind is not None and type(found.value) is not plan.kind:
            raise SimpleError(WRONG_TYPE)
        values[0] = item = CommandItem(key, self._db, found, default)
        return values, [item]

    def call(self, script: Script, name: bytes, arguments: Sequence[bytes]) -> Any:
        """Carry out a command that a script says.

        Raises:
            SimpleError: the reply is this error.
        """
        known = _CACHE.get(name)
        if known is not None and known.quick is not None and not self.is_restricted:
            answer = known.quick(self, arguments)
            if answer is not SLOW:
                self.store.calls[known.name] = self.store.calls.get(known.name, 0) + 1
                return answer
        return self._called(script, name, arguments)

    def _called(self, script: Script, name: bytes, arguments: Sequence[bytes]) -> Any:
        try:
            command, rest = command_of((name, *arguments))
        except SimpleError:
            raise SimpleError("ERR Unknown command called from script") from None
        if not command.in_scripts:
            raise SimpleError("ERR This Valkey command is not allowed from script")
        if self.is_restricted:
            self._permit((name, *arguments), "ACL failure in script: ")
        if command.is_write:
            store = self.store
            if b"no-writes" in script.flags:
                raise SimpleError("ERR Write commands are not allowed from read-only scripts.")
            if store.is_replica:
                raise SimpleError(READ_ONLY)
            if command.is_denied and not store.written and b"allow-oom" not in script.flags and store.is_full:
                raise SimpleError(OUT_OF_MEMORY)
        try:
            return self.run(command, rest)
        except SimpleError as error:
            if error.value.startswith("ERR wrong number of arguments"):
                raise SimpleError("ERR Wrong number of args calling command from script") from None
            raise

    def may(self, words: Sequence[bytes]) -> bool | None:
        """Whether the user may say this; None: there is no such command."""
        try:
            command_of(words)
        except SimpleError:
            return None
        return not self.is_restricted or self._refusal(words) is None

    def _admit(self, command: Command, words: Sequence[bytes]) -> None:
        store = self.store
        if self.is_restricted:
            self._permit(words, "")
        if not store.is_hampered:
            return
        if store.is_loading and not command.while_loading:
            raise SimpleError(LOADING)
        if command.is_write and store.is_replica:
            raise SimpleError(READ_ONLY)
        if command.is_denied and store.is_full:
            raise SimpleError(OUT_OF_MEMORY)

    def _permit(self, words: Sequence[bytes], prefix: str) -> None:
        if refusal := self._refusal(words):
            raise SimpleError(refusal.replace("NOPERM ", f"NOPERM {prefix}", 1))

    def _refusal(self, words: Sequence[bytes]) -> str | None:
        """The error with which the user may not say this.

        With fakeredis a command that is taken away stays granted, and a user that is off loses its connections.
        """
        user, acl = self._client_info.user, self._server.acl
        name, rules = command_of(words)[0].name.replace(" ", "|"), acl.get_user_acl(user)
        if rules._commands.get(name.encode()) is False:
            return messages.NO_PERMISSION_ERROR.format(user.decode(), name)
        is_on, rules.enabled = rules.enabled, True
        try:
            acl.validate_command(user, self._client_info, list(words))
        except SimpleError as error:
            return error.value
        finally:
            rules.enabled = is_on
        return None

    def _note(self, command: Command, arguments: Sequence[bytes], result: Any) -> None:
        """What a silent command has written."""
        if command.name in {"flushall", "flushdb", "swapdb"}:
            self.store.written[b""] = None
        elif command.name != "xreadgroup":
            self.store.written[arguments[0]] = None
        else:
            pairs = result.items() if isinstance(result, dict) else result
            self.store.written.update((key, None) for key, entries in pairs if entries)

    def _blocking(
        self, timeout: float | None, func: Callable[[bool], Any], shape: Callable[[Any], Any] | None = None
    ) -> Any:
        """Not as in fakeredis, which waits in a thread and takes an answer without an entry for one."""

        def ask() -> Any:
            found = func(False)
            return found if not found or shape is None else shape(found)

        if (found := ask()) or self._in_transaction or self._script_resp is not None or self._repeats:
            return found or None
        options = self._words[4:] if self._words[0].upper() == b"XREADGROUP" else self._words
        raise Blocked(timeout or None, ask, _streams_of(options))

    def _xreadgroup_reply(self, res: Any) -> Any:
        """By the version of RESP of the script, where one asks; fakeredis goes by the client's."""
        if self._resp_version == 2:
            return [[key, entries] for key, entries in res.items()] if res else None
        return res or None

    def _empty_stream_read_reply(self, res: Any) -> Any:
        """Nothing is a null, and not an empty array or map."""
        return res or None

    def xpending(self, key: CommandItem, group_name: bytes, *args: bytes) -> Any:
        """With the counts of a summary as text."""
        found = super().xpending(key, group_name, *args)
        if not args:
            found[3] = [[name, b"%d" % count] for name, count in sorted(found[3])] or None
        return found

    def xinfo_groups(self, key: CommandItem) -> Any:
        """In the order of their names."""
        return sorted(super().xinfo_groups(key), key=lambda group: group[b"name"])

    def xinfo_consumers(self, key: CommandItem, group_name: bytes) -> Any:
        """In the order of their names."""
        return sorted(super().xinfo_consumers(key, group_name), key=lambda consumer: consumer["name"])

    def xinfo_stream(self, key: CommandItem, *args: bytes) -> Any:
        """Without what Valkey does not have."""
        found = super().xinfo_stream(key, *args)
        pairs = zip(found[::2], found[1::2], strict=True)
        return {name: value for name, value in pairs if not name.startswith((b"idmp", b"pids", b"iids"))}

    def xreadgroup(self, group_const: bytes, group_name: bytes, consumer_name: bytes, *args: bytes) -> Any:
        """With the real errors where there is no stream, or something else in its place."""
        for key in self._check_streams(args):
            if key not in self._db:
                shown = key.decode("utf-8", "replace"), group_name.decode("utf-8", "replace")
                raise SimpleError(messages.XREADGROUP_KEY_OR_GROUP_NOT_FOUND_MSG.format(*shown))
        return super().xreadgroup(group_const, group_name, consumer_name, *args)

    def smembers(self, key: CommandItem) -> Any:
        """In one order, and not in that of hashes."""
        return sorted(super().smembers(key))

    def xread(self, *args: bytes) -> Any:
        """With the real error where there is something else in place of a stream."""
        self._check_streams(args)
        return super().xread(*args)

    def xgroup_create(self, key: CommandItem, group_name: bytes, start_key: bytes, *args: bytes) -> Any:
        """With the real error where there is such a group."""
        try:
            return super().xgroup_create(key, group_name, start_key, *args)
        except SimpleError as error:
            raise SimpleError(error.value.removeprefix("ERR ") if "BUSYGROUP" in error.value else error.value) from None

    def _expireat(self, key: CommandItem, timestamp: float, *args: bytes, **options: Any) -> int:
        """What is to expire by now goes, and not after the present millisecond."""
        done = super()._expireat(key, timestamp, *args, **options)
        if done and timestamp <= self._db.time:
            key.value = None
        return done

    def _check_streams(self, words: Sequence[bytes]) -> Sequence[bytes]:
        keys = _streams_of(words)
        for key in keys:
            item = self._db.get(key)
            if item is not None and not isinstance(item.value, XStream):
                raise SimpleError(WRONG_TYPE)
        return keys

    def end(self) -> None:
        """The client is gone."""
        if self in self._server.sockets:
            self._server.sockets.remove(self)
        self._cleanup(self._server)

    def kill(self) -> None:
        """CLIENT KILL."""
        super().kill()
        self.store.disconnect(self)

    # Scripts.

    @own("eval")
    def own_eval(self, words: Sequence[bytes]) -> Any:
        text, keys, arguments = _script_words(words)
        script = self.store.scripts.compiled(text)
        self._server.script_cache[script.sha] = text
        return self._scripted(script, keys, arguments)

    @own("evalsha")
    def own_evalsha(self, words: Sequence[bytes]) -> Any:
        sha, keys, arguments = _script_words(words)
        sha = sha.lower()
        if sha not in self._server.script_cache and not self._repeats:
            raise SimpleError(NO_SCRIPT)
        return self._scripted(self.store.scripts.of(sha), keys, arguments)

    @own("script load")
    def own_script_load(self, words: Sequence[bytes]) -> Any:
        if len(words) != 1:
            raise SimpleError("ERR wrong number of arguments for 'script|load' command")
        script = self.store.scripts.compiled(words[0])
        self._server.script_cache[script.sha] = words[0]
        return script.sha

    def _scripted(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Raw:
        store = self.store
        if store.is_hampered and script.strict and not self._repeats:
            if store.is_replica and b"no-writes" not in script.flags:
                raise SimpleError(READ_ONLY)
            if store.is_full and b"allow-oom" not in script.flags:
                raise SimpleError(OUT_OF_MEMORY)
        self._script_resp = 2
        null = b"_\r\n" if self.is_resp3 else b"$-1\r\n"
        try:
            return Raw(store.scripts.run(script, keys, arguments, self, null))
        finally:
            self._script_resp = None

    # Transactions.

    @own("multi")
    def own_multi(self, _: Sequence[bytes]) -> Any:
        if self._queue is not None:
            raise SimpleError("ERR MULTI calls can not be nested")
        self._queue, self._spoilt = [], False
        return OK

    @own("discard")
    def own_discard(self, _: Sequence[bytes]) -> Any:
        if self._queue is None:
            raise SimpleError("ERR DISCARD without MULTI")
        self._queue = None
        self._clear_watches()
        return OK

    @own("exec")
    def own_exec(self, _: Sequence[bytes]) -> Any:
        queue, self._queue = self._queue, None
        if queue is None:
            raise SimpleError("ERR EXEC without MULTI")
        broken = self._watch_notified
        self._clear_watches()
        if self._spoilt:
            raise SimpleError("EXECABORT Transaction discarded because of previous errors.")
        if broken:
            return None
        self.store.spoken = [words for _, _, words in queue]
        self._in_transaction = True
        try:
            return [self._queued(command, arguments) for command, arguments, _ in queue]
        finally:
            self._in_transaction = False

    def _queued(self, command: Command, arguments: Sequence[bytes]) -> Any:
        try:
            return self.run(command, arguments)
        except SimpleError as error:
            return error

    # The connection and the server.

    @own("hello")
    def own_hello(self, words: Sequence[bytes]) -> Any:
        left = list(words)
        if left:
            if (version := left.pop(0)) not in {b"2", b"3"}:
                raise SimpleError("NOPROTO unsupported protocol version")
            self._client_info["resp"] = int(version)
            self.is_resp3 = version == b"3"
        while left:
            option = left.pop(0).upper()
            if option == b"AUTH" and len(left) > 1:
                self.own_auth([left.pop(0), left.pop(0)])
            elif option == b"SETNAME" and left:
                self._client_info["name"] = left.pop(0).decode("utf-8", "replace")
            else:
                raise SimpleError(messages.SYNTAX_ERROR_MSG)
        return {
            b"server": b"valkey",
            b"version": VALKEY_VERSION.encode(),
            b"proto": 3 if self.is_resp3 else 2,
            b"id": self._client_info["id"],
            b"mode": b"standalone",
            b"role": b"replica" if self.store.is_replica else b"master",
            b"modules": [],
        }

    @own("auth")
    def own_auth(self, words: Sequence[bytes]) -> Any:
        reply = self._auth(*words)
        self.is_restricted = self._client_info["user"] != "default"
        return reply

    @own("quit")
    def own_quit(self, _: Sequence[bytes]) -> Any:
        self.store.disconnect(self, after_reply=True)
        return OK

    @own("role")
    def own_role(self, _: Sequence[bytes]) -> Any:
        if self.store.is_replica:
            return [b"slave", b"127.0.0.1", 1, b"connect", -1]
        return [b"master", self.store.history.count, []]

    @own("wait")
    def own_wait(self, _: Sequence[bytes]) -> Any:
        return 0

    @own("replicaof")
    def own_replicaof(self, words: Sequence[bytes]) -> Any:
        self.store.read_only([word.upper() for word in words] != [b"NO", b"ONE"])
        return OK

    @own("config get")
    def own_config_get(self, words: Sequence[bytes]) -> Any:
        patterns = [word.decode("utf-8", "replace").lower() for word in words]
        kept = sorted(self._server.config.items())
        return {name: value for name, value in kept if any(fnmatchcase(name.decode(), pattern) for pattern in patterns)}

    @own("config set")
    def own_config_set(self, words: Sequence[bytes]) -> Any:
        for name, value in zip(words[::2], words[1::2], strict=True):
            if name.lower() not in CONFIGURATION:
                told = name.decode("utf-8", "replace")
                raise SimpleError(f"ERR Unknown option or number of arguments for CONFIG SET - '{told}'")
            self._server.config[name.lower()] = value
        self.store.configured()
        return OK

    @own("config resetstat")
    def own_config_resetstat(self, _: Sequence[bytes]) -> Any:
        self.store.calls.clear()
        return OK

    @own("info")
    def own_info(self, words: Sequence[bytes]) -> Any:
        wanted = {word.decode("utf-8", "replace").lower() for word in words} or {"default"}
        sections = self.store.information()
        if wanted.isdisjoint({"all", "everything"}):
            usual = sections.keys() - {"commandstats"} if "default" in wanted else set()
            sections = {name: lines for name, lines in sections.items() if name in wanted | usual}
        lines = [
            f"# {name.capitalize()}\r\n" + "".join(f"{key}:{value}\r\n" for key, value in section.items())
            for name, section in sections.items()
        ]
        return "\r\n".join(lines).encode()

    @own("memory usage")
    def own_memory_usage(self, words: Sequence[bytes]) -> Any:
        item = self._db.get(words[0])
        return None if item is None else 56 + len(words[0]) + size_of(item.value)

    @own("memory stats")
    def own_memory_stats(self, _: Sequence[bytes]) -> Any:
        return {b"total.allocated": self.store.used_memory, b"keys.count": sum(map(len, self._server.dbs.values()))}

    @own("acl whoami")
    def own_acl_whoami(self, _: Sequence[bytes]) -> Any:
        return self._client_info.user

    @own("acl dryrun")
    def own_acl_dryrun(self, words: Sequence[bytes]) -> Any:
        command_of(words[1:])
        try:
            self._server.acl.validate_command(words[0], self._client_info, list(words[1:]))
        except SimpleError as error:
            return error.value.encode()
        return OK


def size_of(value: Any) -> int:
    """About how many bytes the real server takes for a value; of a stream its nodes, as they are there."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Hash):
        return sum(len(field) + len(one) + 24 for field, one in value._values.items())
    if isinstance(value, ZSet):
        return sum(len(member) + 40 for member in value._bylex)
    if isinstance(value, XStream):
        groups = sum(300 + 100 * len(group.consumers) + 64 * len(group.pel) for group in value._groups.values())
        room = max(0, 4096 - value._nodes[-1].lp_bytes) if value._nodes else 0  # kept for what comes
        return 256 + room + sum(node.lp_bytes + 64 for node in value._nodes) + groups
    return 64


def encoded(value: Any, is_resp3: bool = False) -> bytes:  # noqa: PLR0911 -- one line for each type
    """A reply in RESP."""
    kind = type(value)
    if kind is Raw:
        return value  # type: ignore[no-any-return] # bytes
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if kind is int or kind is bool:
        return b":%d\r\n" % value
    if value is None:
        return b"_\r\n" if is_resp3 else b"$-1\r\n"
    if kind is list or kind is tuple:
        return b"*%d\r\n%b" % (len(value), b"".join([encoded(one, is_resp3) for one in value]))
    if kind is dict:
        content = b"".join([encoded(one, is_resp3) for pair in value.items() for one in pair])
        return b"%%%d\r\n%b" % (len(value), content) if is_resp3 else b"*%d\r\n%b" % (2 * len(value), content)
    if kind is float:
        return b",%.17g\r\n" % value if is_resp3 else encoded(b"%.17g" % value)
    if isinstance(value, SimpleString):
        return b"+%b\r\n" % value.value
    if isinstance(value, SimpleError):
        return b"-%b\r\n" % _one_line(value.value).encode("utf-8", "surrogateescape")
    return encoded(value.encode())


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


def _script_words(words: Sequence[bytes]) -> tuple[bytes, Sequence[bytes], Sequence[bytes]]:
    """The script, the keys, the arguments."""
    if len(words) < 2:
        raise SimpleError("ERR wrong number of arguments for 'eval' command")
    try:
        count = int(words[1])
    except ValueError:
        raise SimpleError(messages.INVALID_INT_MSG) from None
    if count < 0:
        raise SimpleError(messages.NEGATIVE_KEYS_MSG)
    if count > len(words) - 2:
        raise SimpleError(messages.TOO_MANY_KEYS_MSG)
    return words[0], words[2 : 2 + count], words[2 + count :]


def _streams_of(words: Sequence[bytes]) -> Sequence[bytes]:
    """The keys of XREAD and XREADGROUP."""
    at = next((place for place, word in enumerate(words) if word.upper() == b"STREAMS"), len(words))
    named = words[at + 1 :]
    return named[: len(named) // 2]
