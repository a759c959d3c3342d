-- The front-ends of a namespace that stand under addresses of their own: each renews a lease every second, and who
-- renews is told of all others. Only this clock counts, never a front-end's.
--
-- An address keeps its node id over restarts, until another one needs an id that was not leased for a day. So the hash
-- is no longer than the addresses of a day. A field that nothing here has written is passed over, for a broken one must
-- keep nobody from serving; the caller's own is written anew.
local frontend = { RESERVED_MS = 86400000, MAX_ID = 2147483647, SILENCE_MS = 2500, OUTAGES = 4 }

-- What a field says, or nil: the node id and the end of the lease in ms.
function frontend.parsed(text)
  local id, lease_end = string.match(text, '^(%d+) (%d+)$')
  id, lease_end = tonumber(id), tonumber(lease_end)
  if id and id >= 1 and id <= frontend.MAX_ID and lease_end < 2 ^ 53 then
    return { id = id, lease_end = lease_end }
  end
  return nil
end

-- All leases by address, and the field of the empty name.
function frontend.read(key)
  local fields = value.pairs(redis.call('HGETALL', key))
  local leases = {}
  for address, text in pairs(fields) do
    leases[address] = address ~= '' and frontend.parsed(text) or nil
  end
  return leases, fields[''] or ''
end

-- When nobody was served: the spans of which the field of the empty name tells, and the one that ends now, if any.
function frontend.outages(text, now)
  local renewed, told = string.match(text, '^(%d+)([ %d%-]*)$')
  local spans = {}
  for from, to in string.gmatch(told or '', ' (%d+)%-(%d+)') do
    spans[#spans + 1] = from .. '-' .. to
  end
  if renewed and now - renewed > frontend.SILENCE_MS then
    spans[#spans + 1] = renewed .. '-' .. value.integer(now)
  end
  return table.concat(spans, ' ', math.max(#spans - frontend.OUTAGES + 1, 1))
end

-- The smallest node id that is free or was not leased for a day.
function frontend.smallest_id(leases, now)
  local taken = {}
  for _, lease in pairs(leases) do
    taken[lease.id] = taken[lease.id] or lease.lease_end + frontend.RESERVED_MS >= now
  end
  local id = 1
  while taken[id] do
    id = id + 1
  end
  return id
end

-- The addresses that had a node id.
function frontend.holders(leases, id)
  local addresses = {}
  for address, lease in pairs(leases) do
    if lease.id == id then
      addresses[#addresses + 1] = address
    end
  end
  return addresses
end

-- frontend_renew: renew the lease of an address, and tell of all that live
-- KEYS[1] frontends hash  address -> `node_id lease_end_ms`, '' -> `ms of the last renewal by anybody from-to ...`
-- ARGV[1] address    `host:port`, or '' to tell only that somebody is there
-- ARGV[2] lease ms
-- Returns {0, node_id or -1, outages, [node_id, address, ...] of those that live, by node id}; outages: a text `from-to
-- ...` of the last times, in ms, that nobody renewed for long, one that ends now included
function frontend.renew(keys, args)
  local address, lease_ms = args[1], value.number(args[2], 'lease')
  local leases, text = frontend.read(keys[1])
  local now = value.now_ms()
  local outages = frontend.outages(text, now)
  local own, losers = leases[address], {}
  if address ~= '' then
    if not own then
      own = { id = frontend.smallest_id(leases, now) }
      losers = frontend.holders(leases, own.id)
      leases[address] = own
    end
    own.lease_end = now + lease_ms
  end
  local live = {}
  for of, lease in pairs(leases) do
    -- A clock that went back, as with another server, makes leases of the dead too long.
    if lease.lease_end > now and lease.lease_end <= now + lease_ms then
      live[#live + 1] = { lease.id, of }
    end
  end
  table.sort(live, function(one, other)
    return one[1] < other[1] or one[1] == other[1] and one[2] < other[2]
  end)
  redis.call('HSET', keys[1], '', value.integer(now) .. (outages ~= '' and ' ' .. outages or '')) -- first write
  for _, loser in ipairs(losers) do
    redis.call('HDEL', keys[1], loser)
  end
  if own then
    redis.call('HSET', keys[1], address, value.integer(own.id) .. ' ' .. value.integer(own.lease_end))
  end
  local flat = {}
  for at, of in ipairs(live) do
    flat[2 * at - 1], flat[2 * at] = of[1], of[2]
  end
  return { code.NONE, own and own.id or -1, outages, flat }
end
redis.register_function{
  function_name = 'korvet_frontend_renew',
  callback = frontend.renew,
  flags = { 'allow-oom' },
  description = 'renew the lease of an address, and tell of all that live',
}

-- frontend_leave: end the lease of an address, which keeps its node id
-- KEYS[1] frontends hash  address -> `node_id lease_end_ms`, '' -> `ms of the last renewal by anybody from-to ...`
-- ARGV[1] address
-- Returns {0}
function frontend.leave(keys, args)
  local lease = frontend.read(keys[1])[args[1]]
  local now = value.now_ms()
  if lease and lease.lease_end > now then
    redis.call('HSET', keys[1], args[1], value.integer(lease.id) .. ' ' .. value.integer(now)) -- first write
  end
  return { code.NONE }
end
redis.register_function{
  function_name = 'korvet_frontend_leave',
  callback = frontend.leave,
  flags = { 'allow-oom' },
  description = 'end the lease of an address, which keeps its node id',
}
