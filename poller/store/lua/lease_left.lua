-- Part of other scripts: how long another process's lease still lasts, in ms.
-- How long the other's lease still lasts, in ms. A process that is there renews it in time; of one that is
--   gone, and of a server whose clock was set back since, it would last for as long as that; or for ever, where
--   something has taken its end from the key.
local function left(lease, ttl)
  local left = redis.call('PTTL', lease)
  if left == -1 or left > LONGEST_LEASE_MS then
    redis.call('PEXPIRE', lease, ttl)
    left = tonumber(ttl)
  end
  return left
end
