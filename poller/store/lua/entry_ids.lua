-- Part of other scripts: ids of entries.
-- The two numbers of an entry's id; none of what is no id.
local function place(id)
  local ms, number = string.match(id or '', '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(number)
end
-- Whether an entry comes before another one; false where one of them is no id.
local function precedes(id, other)
  local ms, number = place(id)
  local other_ms, other_number = place(other)
  return ms and other_ms and (ms < other_ms or (ms == other_ms and number < other_number))
end
-- The id after this one.
local function following(id)
  local ms, number = place(id)
  return string.format('%.0f-%.0f', ms, number + 1)
end
