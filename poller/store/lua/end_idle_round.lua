-- Ends a round that has brought nothing new, if the feed is as this process knows it; renews the lease.
-- KEYS: lease, state, snapshots, dictionaries, qualifications, events, pause.
-- ARGV: nonce, ttl of the lease in ms, the digest of the state that is known, marks (field, value; '' deletes).
-- Answers OK, the digest of the state with the marks, and its clock in ms; or STALE, and nothing was written: the lease
--   is another's, the feed is paused, its state is another one, or a part of what it has stored or published is lost.
-- So it checks all that the beginning of a round looks for; what it finds is for that to settle.
-- include counts
-- include entry_ids
-- include state_digest
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('EXISTS', KEYS[7]) == 1 then return {'STALE'} end
if digest_of(redis.call('HGETALL', KEYS[2])) ~= ARGV[3] then return {'STALE'} end
local have = redis.call('HMGET', KEYS[2], 'kept', 'sequence', 'entry')
if lost(counted(KEYS[3], KEYS[4], KEYS[5]), have[1], have[2]) then return {'STALE'} end
if have[3] then
  local last, info = '0-0', redis.pcall('XINFO', 'STREAM', KEYS[6])
  if not info.err then
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then last = info[i + 1] end
    end
  end
  if precedes(last, have[3]) then return {'STALE'} end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
for i = 4, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[2], ARGV[i])
  else redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
local time = redis.call('TIME')
local now = time[1] .. string.format('%03d', math.floor(tonumber(time[2]) / 1000))
return {'OK', digest_of(redis.call('HGETALL', KEYS[2])), now}
