-- Deletes what a trim has written for a subscription that was removed meanwhile and had not begun, or not again.
-- KEYS: events, and the pair's lease, state, parked deliveries, letters and letter_times; then the feed's lease,
--   where that is checked.
-- ARGV: the group, and the nonce of the feed's lease.
-- Answers 1, or 0 where the pair is in use or the feed's lease is another's: nothing was deleted.
if KEYS[7] and redis.call('GET', KEYS[7]) ~= ARGV[2] then return 0 end
if redis.call('EXISTS', KEYS[2], KEYS[4]) > 0 or redis.call('HEXISTS', KEYS[3], 'place') == 1 then return 0 end
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, one in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    for at = 1, #one, 2 do
      if one[at] == 'name' and one[at + 1] == ARGV[1] then return 0 end
    end
  end
end
redis.call('DEL', KEYS[3], KEYS[5], KEYS[6])
return 1
