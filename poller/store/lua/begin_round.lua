-- Acquires a feed's lease and reads its state; creates the state where there is none, or not all of it.
-- KEYS: lease, state, snapshots, dictionaries, qualifications, listings, events, pause, held versions.
-- ARGV: nonce, ttl of the lease in ms, a fresh generation, the generations of this feed that the caller knows
--   (the newest first, '' for none), the sequence it knows, and an id that no entry it knows of is after ('' for none).
-- Answers, where this process has the lease now, the state as a flat list, a word on what was found, its clock in
--   ms, and, where nothing was wrong, the digest of the state; else the ms that the other's lease still has; and where the feed is paused, as text, what is kept of
--   that.
-- The word is '' where all is there, 'new' where nothing ever was, 'stream' where the stream lacks the last
--   event that was published, and else what was missing ('all'; or 'order', where an operator wants it): then
--   the feed starts with nothing left of what was known, and never with a half of it.
-- What comes after any loss has later ids than what was in the stream, whatever the clock: readers that are past
--   that would not see it. The state knows that of a loss of the stream alone; where the state went back or is gone,
--   the caller does. Two callers that know the same may each find a loss, the second one with what was published after
--   the first, so the number in such an id is the server's clock, in us.
-- A feed of which nothing was published yet is like a new one where an operator wants it to begin again: what comes
--   repeats nothing.
-- The state keeps the latest resets, each with the entry that it came after, the newest first: a consumer that was
--   there before several of them gets the reading of none.
-- Where an operator wanted it, the state says so: no consumer was lost with the feed then.
-- The stream stays, for others may still need what is in it; and the sequence goes on from its last event,
--   or, where it has none, from the highest number that is known: a reader that compares numbers would take
--   what comes for old. Where the state is there, its number may be higher: the last events may be erased.
-- include counts
-- include entry_ids
-- include lease_left
-- include state_digest
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return left(KEYS[1], ARGV[2]) end
local pause = redis.call('GET', KEYS[8])
if pause then return pause end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local time = redis.call('TIME')
local now = time[1] .. string.format('%03d', math.floor(tonumber(time[2]) / 1000))
local kind = redis.call('TYPE', KEYS[7])['ok']
local streams = kind == 'stream'
local have = redis.call('HMGET', KEYS[2], 'generation', 'sequence', 'kept', 'entry', 'torn', 'anew', 'formers', 'resets')
local function lift(to)
  local last = '0-0'
  local info = streams and redis.call('XINFO', 'STREAM', KEYS[7]) or {}
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
  end
  local behind = precedes(last, to)
  if behind and (streams or kind == 'none') then
    redis.call('XADD', KEYS[7], to, 'data', '')
    redis.call('XDEL', KEYS[7], to)
    return true, to
  end
  return behind, last
end
local function lift_beyond_known()
  local ms = place(ARGV[6])
  if ms then lift(string.format('%.0f-%s%06d', ms, time[1], tonumber(time[2]))) end
end
local found = 'state'
if have[1] and have[2] then
  found = have[6] and 'order' or lost(counted(KEYS[3], KEYS[4], KEYS[5]), have[3], have[2]) or ''
end
if found == '' then
  if have[4] then
    local behind, last = lift(have[4])
    if have[5] or behind then
      found = 'stream'
      redis.call('HDEL', KEYS[2], 'torn')
      redis.call('HSET', KEYS[2], 'entry', last)
    end
  end
  local is_known = string.find(' ' .. ARGV[4] .. ' ', ' ' .. have[1] .. ' ', 1, true)
  if is_known and (tonumber(have[2]) or 0) < tonumber(ARGV[5]) then lift_beyond_known() end
  local state = redis.call('HGETALL', KEYS[2])
  return {state, found, now, found == '' and digest_of(state) or nil}
end
local formers, sequence = ARGV[4], ARGV[5]
if have[1] then formers = have[1] .. ' ' .. (have[7] or '') end
if tonumber(have[2] or 0) and tonumber(have[2] or 0) > tonumber(sequence) then sequence = have[2] end
local newest = streams and redis.call('XREVRANGE', KEYS[7], '+', '-', 'COUNT', 1)[1]
local last = newest and string.match(table.concat(newest[2], ' '), '"sequence":"0*(%d+)"')
if last and (not have[2] or tonumber(last) > tonumber(sequence)) then sequence = last end
if found ~= 'order' then lift_beyond_known() end
local left = redis.call('EXISTS', KEYS[3], KEYS[4], KEYS[5], KEYS[6])
if not have[1] and left == 0 and not newest then found = 'all' end
local after = newest and newest[1] or '0-0'
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[9])
redis.call('HSET', KEYS[2], 'generation', ARGV[3], 'sequence', sequence, 'kept', '0 0 0',
  'begun_at', now, 'begun_after', after)
if formers == '' and sequence == '0' and left == 0 then return {redis.call('HGETALL', KEYS[2]), 'new', now} end
redis.call('HSET', KEYS[2], 'formers', string.sub(formers, 1, 200))
if found ~= 'order' or sequence ~= '0' then
  local resets = string.sub(ARGV[3] .. '=' .. after .. ' ' .. (have[8] or ''), 1, 400)
  redis.call('HSET', KEYS[2], 'anew_at', now, 'resets', string.match(resets, '^.* ') or '')
end
if found == 'order' then redis.call('HSET', KEYS[2], 'ordered_at', now) end
return {redis.call('HGETALL', KEYS[2]), found, now}
