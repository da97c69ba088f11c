-- Reads the id of the last entry of each stream, without the entry.
-- KEYS: streams.
-- Answers the id of each one's last entry, without the entry.
local ids = {}
for place, key in ipairs(KEYS) do
  local newest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
  ids[place] = newest[1] and newest[1][1] or '0-0'
end
return ids
