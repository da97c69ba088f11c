"""The Lua scripts of a simulated store: compiled once, run against one session, answered in RESP.

fakeredis compiles a script at each call, looks through all globals at each ``redis.call``, collects Lua's garbage after
each script and does not know the first line ``#!lua``. Here one interpreter serves a store, and what a script returns
becomes bytes of RESP within Lua.

**Invariants**

- A script that is compiled stays compiled; whether the server *knows* it is the session's affair (``SCRIPT FLUSH``).
- Globals cannot be written, and one that does not exist cannot be read, as on the real server.
- An error of a command is a Lua table with ``err``, so ``pcall`` of Lua works as on the real server. An exception that
  is no reply of a server, a defect of this module or of fakeredis, leaves :meth:`Scripts.run` as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from fakeredis._helpers import SimpleError, SimpleString
from lupa import lua51

_PRELUDE: Final = b"""
local call, check, sha1 = ...
local type, select, tostring, error, pcall = type, select, tostring, error, pcall
local format, gsub, find, concat, getinfo = string.format, string.gsub, string.find, table.concat, debug.getinfo

local function line(level)
  local info = getinfo(level + 1, 'Sl')
  return info and info.source == '@user_script' and info.currentline or 1
end

local api = {}
function api.pcall(...) return call(...) end
function api.call(...)
  local result = call(...)
  if type(result) == 'table' and result.err then
    result.line = line(2)
    error(result)
  end
  return result
end
function api.acl_check_cmd(...)
  local answer = check(...)
  if answer == nil then
    error({err = 'ERR Invalid command passed to server.acl_check_cmd()', line = line(2)})
  end
  return answer
end
function api.error_reply(text)
  if not find(text, ' ', 1, true) then text = 'ERR ' .. text end
  return {err = text}
end
function api.status_reply(text) return {ok = text} end
function api.sha1hex(text) return sha1(text) end
function api.log() end
api.LOG_DEBUG, api.LOG_VERBOSE, api.LOG_NOTICE, api.LOG_WARNING = 0, 1, 2, 3
redis, server, KEYS, ARGV = api, api, {}, {}
local globals = _G
setmetatable(globals, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})

local function one_line(text) return (gsub(text, '[\\r\\n]', ' ')) end

local function add(parts, value, null)
  local kind = type(value)
  if kind == 'string' then
    parts[#parts + 1] = format('$%d\\r\\n', #value)
    parts[#parts + 1] = value
    parts[#parts + 1] = '\\r\\n'
  elseif kind == 'number' then
    parts[#parts + 1] = format(':%d\\r\\n', value)
  elseif kind == 'boolean' then
    parts[#parts + 1] = value and ':1\\r\\n' or null
  elseif kind ~= 'table' then
    parts[#parts + 1] = null
  elseif value.err then
    parts[#parts + 1] = '-' .. one_line(value.err) .. '\\r\\n'
  elseif value.ok then
    parts[#parts + 1] = '+' .. one_line(value.ok) .. '\\r\\n'
  else
    local count = 0
    while value[count + 1] ~= nil do count = count + 1 end
    parts[#parts + 1] = format('*%d\\r\\n', count)
    for at = 1, count do add(parts, value[at], null) end
  end
end

local function run(script, keys, arguments, null)
  globals.KEYS, globals.ARGV = keys, arguments
  local done, result = pcall(script)
  if not done then
    local text, at = result, nil
    if type(result) == 'table' then
      text, at = result.err or 'ERR unknown error', result.line
    else
      at = string.match(tostring(text), '^user_script:(%d+):')
      text = 'ERR ' .. tostring(text)
    end
    return '-' .. one_line(text) .. ' script: on @user_script:' .. (at or 1) .. '.\\r\\n'
  end
  if type(result) == 'string' then return format('$%d\\r\\n', #result) .. result .. '\\r\\n' end
  if type(result) == 'number' then return format(':%d\\r\\n', result) end
  local parts = {}
  add(parts, result, null)
  return concat(parts)
end

local function compiled(text)
  local script, fault = loadstring(text, '@user_script')
  return script or fault
end

return run, compiled
"""

_FLAGS: Final = frozenset({b"no-writes", b"allow-oom", b"allow-stale", b"no-cluster", b"allow-cross-slot-keys"})


@dataclass(slots=True)
class Script:
    """A compiled script.

    Attributes:
        sha: its digest, as EVALSHA has it.
        text: as it was sent.
        function: of Lua.
        flags: those of its first line.
        strict: it has a first line ``#!lua``, so the server refuses it before its first write.
    """

    sha: bytes
    text: bytes
    function: Any
    flags: frozenset[bytes]
    strict: bool


class Speaker(Protocol):
    """A session, as its scripts need it."""

    def call(self, script: Script, name: bytes, arguments: Sequence[bytes]) -> Any:
        """The reply to a command, in fakeredis' types; an error is raised as SimpleError."""
        ...

    def may(self, words: Sequence[bytes]) -> bool | None:
        """Whether the user may say this; None: there is no such command."""
        ...


class Scripts:
    """The interpreter of one store."""

    def __init__(self) -> None:
        """Start the interpreter."""
        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._table = self._lua.table_from
        self._by_text: dict[bytes, Script] = {}
        self._by_sha: dict[bytes, Script] = {}
        self._statuses: dict[bytes, Any] = {}
        self._script: Script | None = None
        self._speaker: Speaker | None = None
        self._defect: Exception | None = None
        prelude = self._lua.eval(b"function(text) return loadstring(text, '@prelude') end")(_PRELUDE)
        self._run, self._compile = prelude(
            self._call,
            self._check,
            lambda text: hashlib.sha1(text).hexdigest().encode(),  # noqa: S324 -- Redis' own
        )

    def of(self, sha: bytes) -> Script:
        """The script of this digest, which was compiled before."""
        return self._by_sha[sha]

    def compiled(self, text: bytes) -> Script:
        """The script of this text.

        Raises:
            SimpleError: it is no Lua, or its first line is wrong.
        """
        script = self._by_text.get(text)
        if script is None:
            code, flags, strict = _without_shebang(text)
            function = self._compile(code)
            if isinstance(function, bytes):
                raise SimpleError(f"ERR Error compiling script (new function): {function.decode('utf-8', 'replace')}")
            sha = hashlib.sha1(text).hexdigest().encode()  # noqa: S324 -- Redis' own
            script = self._by_text[text] = self._by_sha[sha] = Script(sha, text, function, flags, strict)
        return script

    def run(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], speaker: Speaker, null: bytes
    ) -> bytes:
        """The reply in RESP.

        Args:
            script: which.
            keys: KEYS.
            arguments: ARGV.
            speaker: whose script it is.
            null: what ``nil`` and ``false`` are in the client's version of RESP.
        """
        self._script, self._speaker = script, speaker
        reply: bytes = self._run(script.function, self._table(keys), self._table(arguments), null)
        if self._defect is not None:
            defect, self._defect = self._defect, None
            raise defect
        return reply

    def _call(self, name: Any, *words: Any) -> Any:
        try:
            arguments = [word if type(word) is bytes else _argument(word) for word in words]
            reply = self._speaker.call(self._script, name, arguments)  # type: ignore[union-attr,arg-type] # one runs
            return reply if type(reply) is bytes else self._value(reply)
        except SimpleError as error:
            return self._table({b"err": error.value.encode()})
        except Exception as defect:
            self._defect = defect
            raise

    def _check(self, *words: Any) -> bool | None:
        return self._speaker.may([_argument(word) for word in words])  # type: ignore[union-attr] # as above

    def _value(self, reply: Any) -> Any:  # noqa: PLR0911 -- a return for each type
        """The reply as Lua has it: a null is false, a double is text."""
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if reply is None:
            return False
        if kind is list or kind is tuple:
            return self._table([one if type(one) is bytes else self._value(one) for one in reply])
        if kind is dict:
            return self._table([self._value(one) for pair in reply.items() for one in pair])
        if isinstance(reply, SimpleString):
            if reply.value not in self._statuses:
                self._statuses[reply.value] = self._table({b"ok": reply.value})
            return self._statuses[reply.value]
        if isinstance(reply, SimpleError):
            return self._table({b"err": reply.value.encode()})
        if kind is float:
            return b"%.17g" % reply
        if kind is str:
            return reply.encode()
        return int(reply)


def _argument(word: Any) -> bytes:
    kind = type(word)
    if kind is bytes:
        return word  # type: ignore[no-any-return] # it is bytes
    if kind is int:
        return b"%d" % word
    if kind is float:
        return b"%.17g" % word
    raise SimpleError("ERR Command arguments must be strings or integers")


def _without_shebang(text: bytes) -> tuple[bytes, frozenset[bytes], bool]:
    """The code, whose lines keep their numbers, the flags, and whether there was a first line of that kind."""
    if not text.startswith(b"#!"):
        return text, frozenset(), False
    first, newline, rest = text.partition(b"\n")
    engine, *options = first[2:].split()
    if engine != b"lua" or not newline:
        raise SimpleError(f"ERR Could not find scripting engine '{engine.decode('utf-8', 'replace')}'")
    flags: set[bytes] = set()
    for option in options:
        name, _, value = option.partition(b"=")
        if name != b"flags":
            raise SimpleError(f"ERR Unknown lua shebang option: {option.decode('utf-8', 'replace')}")
        flags.update(filter(None, value.split(b",")))
    for flag in sorted(flags - _FLAGS):
        raise SimpleError(f"ERR Unexpected flag in script shebang: {flag.decode('utf-8', 'replace')}")
    return newline + rest, frozenset(flags), True
