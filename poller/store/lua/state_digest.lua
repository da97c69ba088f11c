-- Part of other scripts: a digest of a feed's state.
-- The digest of a hash as HGETALL answers it; the order of its fields does not count.
local function digest_of(fields)
  local parts = {}
  for i = 1, #fields, 2 do
    parts[#parts + 1] = #fields[i] .. ':' .. fields[i] .. #fields[i + 1] .. ':' .. fields[i + 1]
  end
  table.sort(parts)
  return redis.sha1hex(table.concat(parts))
end
