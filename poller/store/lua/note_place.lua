-- Writes down where a feed consumer begins, where it has no place yet; and with it the backfill that it begins with.
-- KEYS: lease, state, the feed's state, snapshots.
-- ARGV: nonce, beginning, place, the id of the backfill ('': none).
-- A feed without a state has nothing to backfill, unless it had been read before its state was lost: the consumer finds
--   out ('-').
-- Answers its place, or 0 where the lease is another's.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('HSETNX', KEYS[2], 'beginning', ARGV[2])
if redis.call('HSETNX', KEYS[2], 'place', ARGV[3]) == 1 and ARGV[4] ~= '' then
  local known = redis.call('HEXISTS', KEYS[3], 'generation') == 1
  local live = redis.call('HLEN', KEYS[4]) - (tonumber(redis.call('HGET', KEYS[3], 'tombstones') or '') or 0)
  redis.call('HSET', KEYS[2], 'backfill', ARGV[4], 'backfill_at', known and '' or '-', 'backfill_done', 0,
    'backfill_total', live)
end
return redis.call('HGET', KEYS[2], 'place')
