-- Changes the registry of subscriptions, planned on one state of it.
-- KEYS: version, changes, and the hashes.
-- ARGV: the version and the mark of the last change ('' for none) that this was planned on; the mark of this change;
--   then for each field its hash (a number among KEYS), name and value ('' deletes it).
-- Answers 1, or 0 where the version or the mark of the last change is another one: nothing was written.
-- A mark has 16 characters; 64 are kept.
local version, changes = redis.call('GET', KEYS[1]) or '0', redis.call('GET', KEYS[2]) or ''
if version ~= ARGV[1] or string.sub(changes, 1, 16) ~= ARGV[2] then return 0 end
for i = 3, #KEYS do
  local kind = redis.call('TYPE', KEYS[i])['ok']
  if kind ~= 'none' and kind ~= 'hash' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. kind .. ', not a hash')
  end
end
redis.call('INCR', KEYS[1])
redis.call('SET', KEYS[2], string.sub(ARGV[3] .. changes, 1, 64 * 16))
for i = 4, #ARGV, 3 do
  local key = KEYS[tonumber(ARGV[i])]
  if ARGV[i + 2] == '' then redis.call('HDEL', key, ARGV[i + 1])
  else redis.call('HSET', key, ARGV[i + 1], ARGV[i + 2]) end
end
return 1
