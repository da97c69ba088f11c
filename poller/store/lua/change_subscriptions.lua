-- Changes the registry of subscriptions, planned on one version of it.
-- KEYS: version, and the hashes.
-- ARGV: the version that this was planned on; then for each field its hash (a number among KEYS), name and
--   value ('' deletes it).
-- Answers 1, or 0 where the version is another one: nothing was written.
local version = redis.call('GET', KEYS[1]) or '0'
if version ~= ARGV[1] then return 0 end
for i = 2, #KEYS do
  local kind = redis.call('TYPE', KEYS[i])['ok']
  if kind ~= 'none' and kind ~= 'hash' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. kind .. ', not a hash')
  end
end
redis.call('INCR', KEYS[1])
for i = 2, #ARGV, 3 do
  local key = KEYS[tonumber(ARGV[i])]
  if ARGV[i + 2] == '' then redis.call('HDEL', key, ARGV[i + 1])
  else redis.call('HSET', key, ARGV[i + 1], ARGV[i + 2]) end
end
return 1
