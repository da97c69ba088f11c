-- Part of other scripts: the store's clock in milliseconds, as `now`. To be written by string.format('%.0f', now).
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
