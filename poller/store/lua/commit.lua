-- Writes what a page changed: snapshots, events and state together, or nothing.
-- KEYS: lease, state, snapshots, events, quarantine, rejected, qualifications, dictionaries, listings, held
--   versions, page digests.
-- ARGV 1-9: nonce, generation, sequence this was planned on, sequence after it, digest, how many dictionaries
--   the writer knows (it packs snapshots with them), now in ms, most entries in the quarantine, page digests ('' for
--   none).
-- ARGV 10-19: how many arguments follow of each: snapshots (field, value), events, quarantine (raw, reason,
--   digest), qualifications (id), dictionaries (field, value), marks (field, value; '' deletes), listings
--   (field, value), held versions (field, value), held versions that go (field), snapshots that go (field): the first
--   form of those that are written in the second. ARGV 20: the forms of the snapshots that are there.
-- Answers OK, FENCED (the lease is another's), STALE (planned on another state, or on snapshots of other forms, or a
--   part of what is known was lost since), or ALREADY (this very commit was written before and its reply got lost); an error where a
--   key holds something else.
-- A stream that was lost since is no reason to refuse; it is noted for the next round. What comes then has a later id
--   than all that was published, whatever the clock: readers that are past those would not see it.
-- Page digests say what is stored: a snapshot that is written deletes them.
-- Events come first: should a server refuse one of the writes after all (a missing permission), what was
--   written comes again with the same id, and nothing is taken for published that is not.
-- include counts
-- include entry_ids
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
local streams = true
local kinds = {false, 'hash', 'hash', 'stream', 'stream', 'zset', 'zset', 'hash', 'hash', 'hash', 'string'}
for i = 2, 11 do
  local kind = redis.call('TYPE', KEYS[i])['ok']
  if kind ~= 'none' and kind ~= kinds[i] then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. kind .. ', not a ' .. kinds[i])
  end
  if i == 4 then streams = kind ~= 'none' end
end
local have = redis.call('HMGET', KEYS[2], 'generation', 'sequence', 'digest', 'kept', 'entry', '\255forms')
if have[1] ~= ARGV[2] then return 'STALE' end
if ARGV[5] ~= '' and have[3] == ARGV[5] and have[2] == ARGV[4] then return 'ALREADY' end
if have[2] ~= ARGV[3] then return 'STALE' end
if (have[6] or '1') ~= ARGV[20] then return 'STALE' end
if redis.call('HLEN', KEYS[8]) ~= tonumber(ARGV[6]) then return 'STALE' end
if lost(counted(KEYS[3], KEYS[8], KEYS[7]), have[4], have[2]) then return 'STALE' end
local first, last = {}, {}
local at = 21
for i = 10, 19 do
  first[i] = at
  at = at + tonumber(ARGV[i])
  last[i] = at - 1
end
local entry = have[5]
for i = first[11], last[11] do
  local id = redis.call('XADD', KEYS[4], '*', 'data', ARGV[i])
  if i == first[11] and precedes(id, entry) then
    redis.call('XDEL', KEYS[4], id)
    id, streams = redis.call('XADD', KEYS[4], following(entry), 'data', ARGV[i]), false
  end
  entry = id
end
for i = first[12], last[12], 3 do
  if redis.call('ZADD', KEYS[6], 'NX', ARGV[7], ARGV[i + 2]) == 1 then
    redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[8], '*',
      'raw', ARGV[i], 'reason', ARGV[i + 1], 'digest', ARGV[i + 2])
  end
end
if last[12] > first[12] then redis.call('ZREMRANGEBYRANK', KEYS[6], 0, -10001) end
if last[10] > first[10] then
  redis.call('DEL', KEYS[11])
  redis.call('HSET', KEYS[3], unpack(ARGV, first[10], last[10]))
end
if last[19] >= first[19] then redis.call('HDEL', KEYS[3], unpack(ARGV, first[19], last[19])) end
for i = first[13], last[13] do redis.call('ZADD', KEYS[7], ARGV[7], ARGV[i]) end
if last[14] > first[14] then redis.call('HSET', KEYS[8], unpack(ARGV, first[14], last[14])) end
if last[16] > first[16] then redis.call('HSET', KEYS[9], unpack(ARGV, first[16], last[16])) end
if last[17] > first[17] then redis.call('HSET', KEYS[10], unpack(ARGV, first[17], last[17])) end
for i = first[18], last[18] do redis.call('HDEL', KEYS[10], ARGV[i]) end
for i = first[15], last[15], 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[2], ARGV[i])
  else redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
redis.call('HSET', KEYS[2], 'sequence', ARGV[4], 'digest', ARGV[5], 'kept', counted(KEYS[3], KEYS[8], KEYS[7]))
if ARGV[9] ~= '' then redis.call('SET', KEYS[11], ARGV[9]) end
if entry then redis.call('HSET', KEYS[2], 'entry', entry) end
if have[5] and not streams then redis.call('HSET', KEYS[2], 'torn', '1') end
return 'OK'
