-- Writes what became of deliveries: acks, scheduled retries, dead letters, position, all or nothing.
-- KEYS: lease, events, state, parked, letters, letter_times, erased.
-- ARGV 1-5: nonce, serial, group, place ('' leaves it), now in ms.
-- ARGV 6, 7: id and place of the replay ('' for no id leaves it, '' for no place ends it).
-- ARGV 8-11: how many arguments follow of each: entries that the group may forget, parked (id, value), no
--   longer parked (id), letters (id, value).
-- The last five of ARGV: the id of the backfill ('' leaves it), its position ('' ends it), and how many of its records
--   are done; the number of the last erasure that the process knows of ('0': of none); the serial of the last
--   settlement that was answered, '0' where none was since all was read.
-- Answers 1, or 0 where the lease is another's, or 2 where that last settlement is not there any more: the server
--   has lost it, by a restart or a failover. Nothing is written then, or what was lost would come again alone, after
--   later events of its record. Or 3 where a record was erased that the process does not know of: nothing is written,
--   for an event of it may be among what is to be kept.
-- What has this serial or a lower one was written before.
-- Lua accepts some thousand arguments per call.
-- What is kept comes first, what goes comes last: a server that refuses one of the writes (another kind of key, a
--   missing right) loses nothing by it.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local nonce, serial = string.match(redis.call('HGET', KEYS[3], 'settled') or '', '^(%S+) (%d+)$')
if nonce == ARGV[1] and tonumber(serial) >= tonumber(ARGV[2]) then return 1 end
local answered = tonumber(ARGV[#ARGV])
if answered > 0 and (nonce ~= ARGV[1] or tonumber(serial) < answered) then return 2 end
local erasures = redis.call('HGET', KEYS[7], 'number') or '0'
if erasures ~= ARGV[#ARGV - 1] then return 3 end
local first, last, at = {}, {}, 12
for i = 8, 11 do
  first[i] = at
  at = at + tonumber(ARGV[i])
  last[i] = at - 1
end
for i = first[9], last[9], 4000 do
  redis.call('HSET', KEYS[4], unpack(ARGV, i, math.min(i + 3999, last[9])))
end
for i = first[11], last[11], 2 do
  redis.call('HSET', KEYS[5], ARGV[i], ARGV[i + 1])
  redis.call('ZADD', KEYS[6], ARGV[5], ARGV[i])
end
for i = first[10], last[10], 4000 do
  redis.call('HDEL', KEYS[4], unpack(ARGV, i, math.min(i + 3999, last[10])))
end
for i = first[8], last[8], 4000 do
  redis.call('XACK', KEYS[2], ARGV[3], unpack(ARGV, i, math.min(i + 3999, last[8])))
end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[3], 'place', ARGV[4]) end
if ARGV[6] ~= '' and redis.call('HGET', KEYS[3], 'replay') == ARGV[6] then
  if ARGV[7] ~= '' then redis.call('HSET', KEYS[3], 'replay_after', ARGV[7])
  else
    redis.call('HDEL', KEYS[3], 'replay', 'replay_after', 'replay_to')
    redis.call('HSET', KEYS[3], 'replayed', ARGV[6])
  end
end
local backfill, backfill_at, done = ARGV[#ARGV - 4], ARGV[#ARGV - 3], ARGV[#ARGV - 2]
if backfill ~= '' and redis.call('HGET', KEYS[3], 'backfill') == backfill then
  if backfill_at ~= '' then redis.call('HSET', KEYS[3], 'backfill_at', backfill_at, 'backfill_done', done)
  else
    redis.call('HDEL', KEYS[3], 'backfill', 'backfill_at', 'backfill_done', 'backfill_total')
    redis.call('HSET', KEYS[3], 'backfilled', backfill)
  end
end
redis.call('HSET', KEYS[3], 'settled', ARGV[1] .. ' ' .. ARGV[2])
if erasures ~= '0' then redis.call('HSET', KEYS[3], 'erasures', erasures) end
return 1
