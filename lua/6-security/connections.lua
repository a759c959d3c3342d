-- The connections that count for a limit of all front-ends together: an address's or a tenant's. Each front-end
-- reports its own number when it changes, and gets the sum of the others. A front-end has a lease; a number
-- without a lease does not count, and goes when somebody looks at the counter.
local connections = { LASTS_MS = 3600000, MOST_LEASES = 10000 }

-- The front-ends that have a lease, by their names.
function connections.living(key)
  local living = {}
  for _, front_end in ipairs(redis.call('ZRANGE', key, 0, connections.MOST_LEASES - 1)) do
    living[front_end] = true
  end
  return living
end

-- The connections of other living front-ends, and the fields of dead ones.
function connections.others(key, living, front_end)
  local total, dead, told = 0, {}, redis.call('HGETALL', key)
  for at = 1, #told, 2 do
    if not living[told[at]] then
      dead[#dead + 1] = told[at]
    elseif told[at] ~= front_end then
      total = total + (tonumber(told[at + 1]) or 0)
    end
  end
  return total, dead
end

korvet.define({
  name = 'connections_count',
  description = 'store the number of connections of a front-end, and return those of all others; repeatable',
  keys = [[
    leases zset front_end -> time in ms at which its lease ends   counters* hash front_end -> number of connections
  ]],
  args = [[
    front_end   lease_ms:int 0 ends the lease, and with it all that the front-end stated
    counts*<=100 one for each counter
  ]],
  returns = '{0, had_lease 0|1, [others, ...]}; without a lease before, what the front-end stated earlier may be lost',
}, function(keys, params)
  if #params.counts ~= #keys - 1 then
    error('korvet_connections_count takes one count for each counter', 0)
  end
  for at, count in ipairs(params.counts) do
    params.counts[at] = value.number(count, 'korvet_connections_count: counts')
    redis.call('HLEN', keys[at + 1])
  end
  local now, others = value.now_ms(), {}
  local ends_ms = tonumber(redis.call('ZSCORE', keys[1], params.front_end) or 0)
  redis.call('ZREMRANGEBYSCORE', keys[1], '-inf', value.integer(now)) -- first write
  if params.lease_ms > 0 then
    local last_end = now + params.lease_ms + value.CORRECTION_MS
    redis.call('ZREMRANGEBYSCORE', keys[1], '(' .. value.integer(last_end), '+inf')
    redis.call('ZADD', keys[1], value.integer(now + params.lease_ms), params.front_end)
    redis.call('PEXPIRE', keys[1], value.integer(connections.LASTS_MS))
  else
    redis.call('ZREM', keys[1], params.front_end)
  end
  local living = connections.living(keys[1])
  for at, count in ipairs(params.counts) do
    local key = keys[at + 1]
    local total, dead = connections.others(key, living, params.front_end)
    others[at] = total
    for _, front_end in ipairs(dead) do
      redis.call('HDEL', key, front_end)
    end
    if count > 0 then
      redis.call('HSET', key, params.front_end, value.integer(count))
      redis.call('PEXPIRE', key, value.integer(connections.LASTS_MS))
    else
      redis.call('HDEL', key, params.front_end)
    end
  end
  return { code.NONE, ends_ms > now and 1 or 0, others }
end)
