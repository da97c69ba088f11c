-- Reads entries of a stream for consumer groups, each under its lease.
-- KEYS: events, then the lease of each group.
-- ARGV: consumer, bytes; then for each group: nonce, group, the id to read after ('>': what is unread), how many at
--   most.
-- Answers two lists: entries (id, fields), each once, however many groups get it; and for each group the places of its
--   entries in that list, or 0 where the lease is another's, or 1 where nothing was read for it, because the entries for
--   the others have that many bytes already. An error is that of its own group, and of the answer if there is one alone.
local entries, answers, places, size = {}, {}, {}, 0
for i = 2, #KEYS do
  local nonce, group, after, most = unpack(ARGV, 4 * i - 5, 4 * i - 2)
  local answer = {}
  local holder = redis.pcall('GET', KEYS[i])
  if type(holder) == 'table' then
    answer = holder
  elseif holder ~= nonce then
    answer = 0
  elseif size >= tonumber(ARGV[2]) then
    answer = 1
  else
    local found = redis.pcall('XREADGROUP', 'GROUP', group, ARGV[1], 'COUNT', most, 'STREAMS', KEYS[1], after)
    if found and found.err then
      answer = found
    elseif found then
      for place, entry in ipairs(found[1][2]) do
        local id, fields = entry[1], entry[2]
        if not places[id] then
          entries[#entries + 1] = entry
          places[id] = #entries
          for _, text in ipairs(fields or {}) do size = size + #text end
        end
        answer[place] = places[id]
      end
    end
  end
  answers[i - 1] = answer
end
if #KEYS == 2 and type(answers[1]) == 'table' and answers[1].err then return answers[1] end
return {entries, answers}
