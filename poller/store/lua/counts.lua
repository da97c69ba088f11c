-- Part of other scripts: how much a feed keeps, and whether that is less than its state says.
-- How much a feed keeps, and whether that is less than its state says: then a part of it is lost, for what a
--   commit has written only grows.
-- Answers the counts as text; the name of what is lost, or nil. "1" stands for a state that an older version
--   wrote, which has published something and so knows at least one record.
local function counted(snapshots, dictionaries, qualifications)
  return redis.call('HLEN', snapshots) .. ' ' .. redis.call('HLEN', dictionaries) .. ' '
    .. redis.call('ZCARD', qualifications)
end
local function lost(counts, kept, sequence)
  local have, names, at = {}, {'snapshots', 'dictionaries', 'qualifications'}, 0
  for count in string.gmatch(counts, '%d+') do have[#have + 1] = tonumber(count) end
  for count in string.gmatch(kept or (sequence ~= '0' and '1' or ''), '%d+') do
    at = at + 1
    if have[at] < tonumber(count) then return names[at] end
  end
end
