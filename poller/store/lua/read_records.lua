-- Reads some snapshots of a feed, and the moment at which they stand so: where the stream ends, and the feed's state.
-- KEYS: state, snapshots, dictionaries, events.
-- ARGV 1: the name of the field for the forms of the snapshots.
-- ARGV 2-8, to scan: a cursor; the run id of the server, the generation, the forms and the sequence that it was given
--   with (empty for a new scan); how many snapshots, and about how many bytes of them.
-- ARGV 2, to look up: empty; then the fields of the snapshots.
-- Answers the generation, the sequence, the forms and the id field of the state (each '' where it is missing), the run
--   id of the server, the id of the last entry that the stream was given ('0-0': none), the dictionaries as a flat
--   list, and the cursor to go on with ('0': that was all), 1 where the scan began again, snapshots as a flat list, and 1
--   where the feed's first reading has ended.
-- A cursor says nothing to another process of the server, and a conversion gives snapshots other fields: then the scan
--   begins again, as it does where the store went back.
-- Snapshots are read in steps, for a step of many may hold gigabytes; one step holds all of a small hash.
local have = redis.call('HMGET', KEYS[1], 'generation', 'sequence', ARGV[1], 'id_field', 'read_at')
local generation, sequence, forms, field = have[1] or '', have[2] or '', have[3] or '', have[4] or ''
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
local entry = '0-0'
if redis.call('EXISTS', KEYS[4]) == 1 then
  local info = redis.call('XINFO', 'STREAM', KEYS[4])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then entry = info[i + 1] end
  end
end
local cursor, restarted, found = ARGV[2], 0, {}
if cursor == '' then
  cursor = '0'
  for i = 3, #ARGV do
    local stored = redis.call('HGET', KEYS[2], ARGV[i])
    if stored then
      found[#found + 1] = ARGV[i]
      found[#found + 1] = stored
    end
  end
else
  if ARGV[6] ~= '' and (ARGV[3] ~= run_id or ARGV[4] ~= generation or ARGV[5] ~= forms
      or (tonumber(ARGV[6]) or 0) > (tonumber(sequence) or 0)) then
    cursor, restarted = '0', 1
  end
  local most, room, size = tonumber(ARGV[7]), tonumber(ARGV[8]), 0
  local step = math.min(most, 4)
  repeat
    local answer = redis.call('HSCAN', KEYS[2], cursor, 'COUNT', step)
    cursor = answer[1]
    for _, text in ipairs(answer[2]) do
      found[#found + 1] = text
      size = size + #text
    end
    local count = #found / 2
    local affordable = count > 0 and math.floor((room - size) / (size / count)) or most
    step = math.max(math.min(most - count, affordable, step * 4), 1)
  until cursor == '0' or count >= most or size >= room
end
local read = have[5] and 1 or 0
return {generation, sequence, forms, field, run_id, entry, redis.call('HGETALL', KEYS[3]), cursor, restarted, found, read}
