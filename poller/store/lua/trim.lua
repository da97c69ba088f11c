-- Takes entries out of a stream that are old enough and needed by no reader.
-- KEYS, ARGV 1-2 and 9-: see spans.
-- ARGV 3, 4: the last entry that may go, and the place behind it.
-- Answers how many are gone, FENCED, or CHANGED: a reader needs what was to go, and nothing went.
-- include spans
local last = padded(ARGV[3])
for _, one in ipairs(spans) do
  if padded(one.after) < last or (one.held and padded(one.held) <= last) then return 'CHANGED' end
end
return trimmed('MINID', ARGV[4])
