-- Renews several leases of one process.
-- KEYS: the leases; of feed consumers each is followed by its state.
-- ARGV: ttl of the leases in ms, how many KEYS each has (1 or 2), then their nonces.
-- Answers for each what renew_lease answers: 0 if this process did not have it; else 1, or of a feed consumer what was
--   settled last ('-' nothing).
local each, answers = tonumber(ARGV[2]), {}
for i = 3, #ARGV do
  local at = (i - 3) * each + 1
  if redis.call('GET', KEYS[at]) ~= ARGV[i] then
    answers[i - 2] = 0
  else
    redis.call('PEXPIRE', KEYS[at], ARGV[1])
    answers[i - 2] = each == 1 and 1 or redis.call('HGET', KEYS[at + 1], 'settled') or '-'
  end
end
return answers
