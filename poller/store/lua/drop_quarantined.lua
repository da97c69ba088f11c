-- Deletes quarantined records.
-- KEYS: quarantine, rejected.
-- ARGV: for each entry its id and the digest of its record.
-- Answers how many there were.
-- A digest is forgotten only along with its entry: one that is gone already may have been quarantined again
--   since.
local gone = 0
for i = 1, #ARGV, 2 do
  if redis.call('XDEL', KEYS[1], ARGV[i]) == 1 then
    redis.call('ZREM', KEYS[2], ARGV[i + 1])
    gone = gone + 1
  end
end
return gone
