"""The Lua scripts: the only way in which a feed's keys are written.

Law of all of them: first the checks, then writes that cannot fail, for Redis does not roll a script back. They move
bytes and compare them, no more; events are encoded and snapshots are packed before (Lua would damage large integers
and empty arrays).

Fencing compares a random nonce and not a counter: a counter kept in the same Redis, replicated asynchronously, may
repeat after a failover.
"""

from __future__ import annotations

from typing import Final

# Servers from 7.0 on know the shebang. With it, one that is out of memory refuses the script before its first write.
SHEBANG: Final = "#!lua\n"

# KEYS: lease, state. ARGV: nonce, lease ttl in ms, a fresh generation.
# Answers the state as a flat list where the lease is ours now, else the ms that the other's lease still has.
BEGIN: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return redis.call('PTTL', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if redis.call('HEXISTS', KEYS[2], 'generation') == 0 then
  redis.call('HSET', KEYS[2], 'generation', ARGV[3], 'sequence', '0')
end
return redis.call('HGETALL', KEYS[2])
"""

# KEYS: lease. ARGV: nonce, lease ttl in ms (0 lets it go). Answers 1 where it was ours.
RENEW: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
"""

# KEYS: state. ARGV: the field to set, the field that must be there. Answers 1 where it was.
ORDER: Final = """
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], '1')
return 1
"""

# KEYS: lease, state, snapshots, events, quarantine, qualifications, dictionaries.
# ARGV 1-7: nonce, generation, sequence this was planned on, sequence after it, digest, how many dictionaries the writer
#           knows (it packs snapshots with them), most entries in the quarantine.
# ARGV 8-13: how many arguments follow of each: snapshots (field, value), events, quarantine (raw, reason),
#            qualifications (score, id), dictionaries (field, value), marks (field, value; '' deletes).
# Answers OK, FENCED (the lease is not ours), STALE (planned on another state), or ALREADY (this very commit was
# written before and its reply got lost).
COMMIT: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
local have = redis.call('HMGET', KEYS[2], 'generation', 'sequence', 'digest')
if have[1] ~= ARGV[2] then return 'STALE' end
if ARGV[5] ~= '' and have[3] == ARGV[5] and have[2] == ARGV[4] then return 'ALREADY' end
if have[2] ~= ARGV[3] then return 'STALE' end
if redis.call('HLEN', KEYS[7]) ~= tonumber(ARGV[6]) then return 'STALE' end
local at = 14
local function section(index)
  local first = at
  at = at + tonumber(ARGV[index])
  return first, at - 1
end
local first, last = section(8)
if last > first then redis.call('HSET', KEYS[3], unpack(ARGV, first, last)) end
first, last = section(9)
for i = first, last do redis.call('XADD', KEYS[4], '*', 'data', ARGV[i]) end
first, last = section(10)
for i = first, last, 2 do
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[7], '*', 'raw', ARGV[i], 'reason', ARGV[i + 1])
end
first, last = section(11)
if last > first then redis.call('ZADD', KEYS[6], unpack(ARGV, first, last)) end
first, last = section(12)
if last > first then redis.call('HSET', KEYS[7], unpack(ARGV, first, last)) end
first, last = section(13)
for i = first, last, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[2], ARGV[i])
  else redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
redis.call('HSET', KEYS[2], 'sequence', ARGV[4], 'digest', ARGV[5])
return 'OK'
"""
