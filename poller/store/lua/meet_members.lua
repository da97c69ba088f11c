-- Beats for a member, or removes it; removes those whose beat has run out; reads the list where it changed.
-- Of one that has fallen silent, beat and configuration stay for two more terms: it may only be slow, and until then no
--   form of snapshots is written that it does not read. It has left the list already, so the version stays when they go.
--   Only a beat lets them go: a command that looks may name another term.
-- KEYS: version, roles, beats, configurations.
-- ARGV: what is done ('look', 'beat' or 'leave'), the name, how long a beat lasts in ms, the roles, the
--   version that is known ('' none), '1' where others have to look at their leases, the configuration.
-- Answers the version and the time in ms; where another version is known, names and roles in turn, and names
--   and configurations in turn, behind them.
-- A process of a version without configurations leaves those of the dead behind.
-- A beat that lasts longer than permitted was sent before the server's clock was set back: it lasts for a term
--   from now.
-- The version is no less than the time of the change: a store that has gone back to an older copy gives no other list
-- the number of one that it has lost.
-- Lua writes large numbers as 1.7e+12, which no server reads.
-- include now
local changed = ARGV[6] == '1'
local latest = string.format('%.0f', now + LONGEST_LEASE_MS)
for _, late in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. latest, '+inf')) do
  redis.call('ZADD', KEYS[3], string.format('%.0f', now + tonumber(ARGV[3])), late)
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now))) do
  if redis.call('HDEL', KEYS[2], gone) == 1 then changed = true end
end
if ARGV[1] == 'beat' then
  if redis.call('HGET', KEYS[2], ARGV[2]) ~= ARGV[4] then
    redis.call('HSET', KEYS[2], ARGV[2], ARGV[4])
    changed = true
  end
  if redis.call('HGET', KEYS[4], ARGV[2]) ~= ARGV[7] then
    redis.call('HSET', KEYS[4], ARGV[2], ARGV[7])
    changed = true
  end
  redis.call('ZADD', KEYS[3], string.format('%.0f', now + tonumber(ARGV[3])), ARGV[2])
  local past = string.format('%.0f', now - 2 * tonumber(ARGV[3]))
  for _, silent in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', past)) do
    redis.call('ZREM', KEYS[3], silent)
    redis.call('HDEL', KEYS[4], silent)
  end
elseif ARGV[1] == 'leave' then
  redis.call('ZREM', KEYS[3], ARGV[2])
  redis.call('HDEL', KEYS[4], ARGV[2])
  if redis.call('HDEL', KEYS[2], ARGV[2]) == 1 then changed = true end
end
if changed then
  if redis.call('INCR', KEYS[1]) < now then redis.call('SET', KEYS[1], string.format('%.0f', now)) end
  local kept = {}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '+inf')) do kept[name] = true end
  for _, name in ipairs(redis.call('HKEYS', KEYS[4])) do
    if not kept[name] then redis.call('HDEL', KEYS[4], name) end
  end
end
local version = redis.call('GET', KEYS[1]) or '0'
if version == ARGV[5] then return {version, now} end
return {version, now, redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[4])}
