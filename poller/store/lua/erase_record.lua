-- Replaces what is known of a record by a tombstone without content, and ends commits and settlements under way.
-- KEYS: state, snapshots, events, page digests, held versions, erased, erased events.
-- ARGV 1-12: generation and sequence ('': the feed has no state), the name of the field for the forms of the snapshots,
--   what that says ("1" stands for no such field), the record's key in queues of deliveries, now in ms, how long marks of
--   erasures are kept in ms, how many live records are replaced, the stored tally of an erasure of the record that was not
--   announced yet ('': none), the tally that is to stand there, behind the id and a space, the nonce of this erasure ('':
--   its tally was not opened), and how many versions of the record are held back.
-- ARGV 13-: how many keys the record may have, and those; then for each of its snapshots the field, what that holds, and
--   the tombstone that is to stand there.
-- Answers the id that comes after all that was published before, the number of the erasure, and how many
--   held versions were forgotten; CHANGED, where the feed or the record is not as it was read; or SUPERSEDED, where
--   another erasure of the record has begun.
-- The feed's sequence number rises by one without an event: each commit names the number that it was planned on, so a
--   commit that was planned before is refused. The number is noted as erased. The id of an entry that is deleted again
--   marks the place in the stream: what has a lower one was published before.
-- The count of erasures refuses settlements of processes that do not know of this one yet.
-- include entry_ids
local have = redis.call('HMGET', KEYS[1], 'generation', 'sequence', ARGV[3], 'entry', 'tombstones')
if (have[1] or '') ~= ARGV[1] or (have[2] or '') ~= ARGV[2] or (have[3] or '1') ~= ARGV[4] then return 'CHANGED' end
local holder = redis.call('HGET', KEYS[6], 'erasing:' .. ARGV[5]) or ''
if (string.match(holder, '^%S+') or '') ~= ARGV[11] then return 'SUPERSEDED' end
local tally = 'unannounced:' .. ARGV[5]
if (redis.call('HGET', KEYS[6], tally) or '') ~= ARGV[9] then return 'CHANGED' end
local keys = tonumber(ARGV[13])
local held = 0
if have[1] then
  for i = 14, 13 + keys do held = held + redis.call('HEXISTS', KEYS[5], ARGV[i]) end
end
if held ~= tonumber(ARGV[12]) then return 'CHANGED' end
for i = 14 + keys, #ARGV, 3 do
  if redis.call('HGET', KEYS[2], ARGV[i]) ~= ARGV[i + 1] then return 'CHANGED' end
end
local id = redis.call('XADD', KEYS[3], '*', 'data', '')
redis.call('XDEL', KEYS[3], id)
if precedes(id, have[4]) then
  id = following(have[4])
  redis.call('XADD', KEYS[3], id, 'data', '')
  redis.call('XDEL', KEYS[3], id)
end
local number = redis.call('HINCRBY', KEYS[6], 'number', 1)
redis.call('HSET', KEYS[6], 'record:' .. ARGV[5], id .. ' ' .. ARGV[6])
redis.call('HSET', KEYS[6], tally, id .. ' ' .. ARGV[10])
if have[1] then
  local sequence = redis.call('HINCRBY', KEYS[1], 'sequence', 1)
  redis.call('ZADD', KEYS[7], sequence, string.format('%.0f', sequence))
  redis.call('HSET', KEYS[1], 'entry', id)
  for i = 14 + keys, #ARGV, 3 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2]) end
  if have[5] then redis.call('HINCRBY', KEYS[1], 'tombstones', ARGV[8]) end
  redis.call('DEL', KEYS[4])
  for i = 14, 13 + keys do redis.call('HDEL', KEYS[5], ARGV[i]) end
  if held > 0 then
    local left = redis.call('HLEN', KEYS[5])
    if left > 0 then redis.call('HSET', KEYS[1], 'held_versions', left)
    else redis.call('HDEL', KEYS[1], 'held_versions') end
  end
end
local marks = redis.call('HGETALL', KEYS[6])
for i = 1, #marks, 2 do
  local at = string.match(marks[i + 1], '^%S+ (%d+)$')
  if at and tonumber(at) < tonumber(ARGV[6]) - tonumber(ARGV[7]) then redis.call('HDEL', KEYS[6], marks[i]) end
end
return {id, string.format('%.0f', number), held}
