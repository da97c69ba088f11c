-- Takes the oldest entries out of a stream that is too large, and writes down who lost what.
-- KEYS, ARGV 1-2 and 9-: see spans.
-- ARGV 3-7: how many entries may stay, now in ms, now as text, and as JSON why: what was not delivered went,
--   what was to be delivered once more.
-- Answers as trim does.
-- What a subscription loses is written into one dead letter, 0-N, which grows as long as it is not past what
--   was in the stream when it lost something last.
-- A row of `overruns` is, by the group (or replay:group): announced (0, 1), since when (ms), N, first lost, how
--   many, sequence of the first and of the last, the first that is left ('-' where one of these is not
--   known), the stream's last entry then.
-- include spans
local function sequence(entry)
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'data' then return string.match(entry[2][i + 1], '"sequence":"0*(%d+)"') end
  end
end
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local at_stake, names = {}, {}
for _, one in ipairs(spans) do
  names[one.name] = true
  if one.pair then one.held = nil end  -- the feed consumer finds that these are gone, and writes a dead letter for each
  if one.held then one.start = one.held end
  local first = redis.call('XRANGE', KEYS[2], one.start, one.to, 'COUNT', 1)[1]
  if first then
    one.first, one.sequence = first[1], sequence(first)
    if one.to ~= '+' then
      local last = redis.call('XREVRANGE', KEYS[2], one.to, one.start, 'COUNT', 1)[1]
      one.last, one.last_sequence = last[1], sequence(last)
    end
    at_stake[#at_stake + 1] = one
  end
end
local gone = trimmed('MAXLEN', ARGV[3])
if gone == 0 then return 0 end
local left = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
local function last_sequence(one)
  if one.last and (not left or padded(one.last) < padded(left[1])) then return one.last_sequence end
  if not left then return redis.call('HGET', KEYS[3], 'sequence') end
  local number = sequence(left)
  return number and string.format('%.0f', tonumber(number) - 1)
end
local function quoted(text) return text == '-' and 'null' or '"' .. text .. '"' end
local function number_or_null(text) return text == '-' and 'null' or text end
for _, one in ipairs(at_stake) do
  if not left or padded(one.first) < padded(left[1]) then
    local last, count = last_sequence(one) or '-', gone
    if one.sequence and last ~= '-' then
      count = math.max(math.min(gone, tonumber(last) - tonumber(one.sequence) + 1), 1)
    end
    local announced, at, number, first, entries, from, stop = string.match(
      redis.call('HGET', KEYS[4], one.name) or '', '^(%d) (%d+) (%d+) (%S+) (%d+) (%S+) %S+ %S+ (%S+)$')
    if not announced or padded(one.held or one.after) >= padded(stop)
      or (one.pair and redis.call('HEXISTS', KEYS[one.pair + 1], '0-' .. number) == 0) then
      announced, at, first, entries, from, number = '0', ARGV[4], one.first, 0, one.sequence or '-', 0
      if one.pair then number = redis.call('HINCRBY', KEYS[one.pair], 'overruns', 1) end
    end
    entries = string.format('%.0f', entries + count)
    local first_left = left and left[1] or '-'
    redis.call('HSET', KEYS[4], one.name,
      table.concat({announced, at, number, first, entries, from, last, first_left, newest[1]}, ' '))
    if one.pair then
      local reason = string.sub(one.name, 1, 7) == 'replay:' and ARGV[7] or ARGV[6]
      redis.call('HSET', KEYS[one.pair + 1], '0-' .. number, '{"event":null,"reason":' .. reason
        .. ',"at":"' .. ARGV[5] .. '","attempts":[],"overrun":{"first":"' .. first .. '","left":' .. quoted(first_left)
        .. ',"events":' .. entries .. ',"sequence":' .. number_or_null(from)
        .. ',"last_sequence":' .. number_or_null(last) .. '}}')
      redis.call('ZADD', KEYS[one.pair + 2], ARGV[4], '0-' .. number)
      redis.call('HINCRBY', KEYS[one.pair], 'lost', count)
    end
  end
end
local rows = redis.call('HGETALL', KEYS[4])
for i = 1, #rows, 2 do
  if not names[rows[i]] and string.sub(rows[i + 1], 1, 1) == '1' then redis.call('HDEL', KEYS[4], rows[i]) end
end
return gone
