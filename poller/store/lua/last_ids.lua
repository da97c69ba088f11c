-- Reads where each stream ends.
-- KEYS: streams.
-- Answers the id of each one's last entry, also where that was deleted; '0-0' where there is no stream.
local ids = {}
for place, key in ipairs(KEYS) do
  ids[place] = '0-0'
  if redis.call('EXISTS', key) == 1 then
    local info = redis.call('XINFO', 'STREAM', key)
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then ids[place] = info[i + 1] end
    end
  end
end
return ids
