-- The registry: the live front-ends of a namespace, each with a lease. A front-end renews its lease, and the reply
-- lists all others. Only this clock counts, never a front-end's.
--
-- An address keeps its node id over restarts, until another address needs an id that was not leased for a day. So the
-- hash is no longer than the addresses of a day. The library ignores a field that it has not written, because a broken
-- field must not stop a front-end. It writes the caller's own field anew.
--
-- One front-end has the turn to sweep the namespace, by a lease that its renewals carry. A sweep is right without it:
-- two sweeps at once do no harm. If the holder dies, another front-end gets the turn when the lease is over.
--
-- A namespace is idle if no front-end reported clients for a minute. Front-ends then renew seldom, with long leases.
-- This library counts the minute, so it outlasts a front-end that dies. A renewal for clients makes the namespace
-- active: it cuts all leases to its own length, and wakes all front-ends. So replies list a front-end that died
-- meanwhile for no longer than one that dies now.
--
-- A front-end with several listeners has one lease, under the address of its first one. A field beside the lease has
-- the address of each listener by the listener's name; this library does not read that text. Without the field, the
-- front-end has a single listener, `default`.
local frontend = {
  RESERVED_MS = 86400000, MAX_ID = 2147483647, TURN = '@sweep', ACTIVE = '@active',
  -- The begin of the name of the field with a lease's listeners, before the address.
  LISTENERS = '@listeners ', LONGEST_LISTENERS = 65536,
  -- A namespace is active for so long after the last renewal for clients.
  ACTIVE_MS = 60000,
  -- A lease in an idle namespace is longer by this factor.
  IDLE_TIMES = 120,
}

-- The node id and the end of the lease in ms from a field, or nil.
function frontend.parsed(text)
  local id, lease_end = string.match(text, '^(%d+) (%d+)$')
  id, lease_end = tonumber(id), tonumber(lease_end)
  if id and id >= 1 and id <= frontend.MAX_ID and lease_end < 2 ^ 53 then
    return { id = id, lease_end = lease_end }
  end
  return nil
end

-- All leases by address, and all fields.
function frontend.read(key)
  local fields = value.pairs(calls.call('HGETALL', key))
  local leases = {}
  for address, text in pairs(fields) do
    leases[address] = address ~= '' and string.sub(address, 1, 1) ~= '@' and frontend.parsed(text) or nil
  end
  return leases, fields
end

-- The end of the turn's lease in ms and the holder's token, or nil.
function frontend.turn(fields)
  local lease_end, holder = string.match(fields[frontend.TURN] or '', '^(%d+) (%S+)$')
  return tonumber(lease_end), holder
end

-- The front-ends whose leases run, as [node_id, address, ...].
function frontend.live(leases, now, lease_ms)
  local live = {}
  for address, lease in pairs(leases) do
    if value.is_running(lease.lease_end, now, lease_ms) then
      live[#live + 1] = { lease.id, address }
    end
  end
  table.sort(live, function(one, other)
    return one[1] < other[1] or one[1] == other[1] and one[2] < other[2]
  end)
  local flat = {}
  for at, of in ipairs(live) do
    flat[2 * at - 1], flat[2 * at] = of[1], of[2]
  end
  return flat
end

-- The listeners that live front-ends reported, as [address, listeners, ...].
function frontend.listeners(live, fields)
  local flat = {}
  for at = 2, #live, 2 do
    local told = fields[frontend.LISTENERS .. live[at]]
    if told then
      flat[#flat + 1], flat[#flat + 2] = live[at], told
    end
  end
  return flat
end

-- 1 if a front-end has the turn to sweep from now on, else 0; fields changes.
function frontend.take_turn(fields, token, now, lease_ms)
  local lease_end, holder = frontend.turn(fields)
  if token == '' or holder and holder ~= token and value.is_running(lease_end, now, lease_ms) then
    return 0
  end
  fields[frontend.TURN] = value.integer(now + lease_ms) .. ' ' .. token
  return 1
end

-- Let no running lease of an idle namespace be longer than one of an active namespace; leases and fields change.
function frontend.cut(leases, fields, now, lease_ms)
  local latest, longest = now + lease_ms, lease_ms * frontend.IDLE_TIMES
  for _, lease in pairs(leases) do
    if value.is_running(lease.lease_end, now, longest) then
      lease.lease_end = math.min(lease.lease_end, latest)
    end
  end
  local lease_end, holder = frontend.turn(fields)
  if holder and lease_end > latest and value.is_running(lease_end, now, longest) then
    fields[frontend.TURN] = value.integer(latest) .. ' ' .. holder
  end
end

-- Write the fields that are not leases, and the leases of some addresses.
function frontend.write(key, fields, leases)
  local flat = { '', fields[''] }
  for _, name in ipairs{ frontend.TURN, frontend.ACTIVE } do
    if fields[name] then
      flat[#flat + 1], flat[#flat + 2] = name, fields[name]
    end
  end
  calls.call('HSET', key, unpack(flat)) -- first write
  for address, lease in pairs(leases) do
    calls.call('HSET', key, address, value.integer(lease.id) .. ' ' .. value.integer(lease.lease_end))
  end
end

-- Write the listeners of an address, or remove its earlier ones; fields is the hash's content.
function frontend.write_listeners(key, fields, address, listeners)
  local name = frontend.LISTENERS .. address
  if address ~= '' and listeners ~= '' and fields[name] ~= listeners then
    calls.call('HSET', key, name, listeners)
  elseif fields[name] and listeners == '' then
    calls.call('HDEL', key, name)
  end
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

-- The mode of a namespace with a caller: is it idle, does the caller make it active, and the ms of the caller's lease.
function frontend.mode(params, fields, now)
  local active_until = tonumber(fields[frontend.ACTIVE]) or 0
  local was_active = value.is_running(active_until, now, frontend.ACTIVE_MS)
  if params.clients ~= 'none' then
    return false, not was_active, params.lease
  elseif was_active then
    return false, false, params.lease
  end
  return true, false, params.lease * frontend.IDLE_TIMES
end

-- Renew the lease of an address in leases: that lease, and the addresses that lose their node id to it; nil for ''.
function frontend.take_lease(leases, address, now, lease_ms)
  if address == '' then
    return nil, {}
  end
  local own, losers = leases[address], {}
  if not own then
    own = { id = frontend.smallest_id(leases, now) }
    losers = frontend.holders(leases, own.id)
    leases[address] = own
  end
  own.lease_end = now + lease_ms
  return own, losers
end

-- The text of the field of the empty name: the time until which a front-end was there, and the outages.
function frontend.stamp(served_until, outages)
  return value.integer(served_until) .. (outages ~= '' and ' ' .. outages or '')
end

-- Raise an error if a caller's text of listeners is too long.
function frontend.check_listeners(listeners)
  if listeners and #listeners > frontend.LONGEST_LISTENERS then
    error('listeners are longer than ' .. value.integer(frontend.LONGEST_LISTENERS) .. ' bytes', 0)
  end
end

-- Add what a caller asks for besides the live front-ends to its reply; fields changes.
function frontend.add(reply, params, fields, now, lease_ms)
  if params.sweeper then
    reply[5] = frontend.take_turn(fields, params.sweeper, now, lease_ms)
    reply[6] = params.clients and lease_ms
    reply[7] = params.listeners and frontend.listeners(reply[4], fields)
  end
end

korvet.define({
  name = 'frontend_renew', flags = { 'allow-oom' },
  description = 'renew the lease of an address, and return the live front-ends',
  keys = [[
    frontends hash address -> `node_id lease_end_ms`, '' -> `ms of the last renewal by any front-end from-to ...` (in an
      idle namespace the lease's end), `@sweep` -> `lease_end_ms token` of the front-end that has the turn to sweep,
      `@active` -> ms until which the namespace is active, `@listeners address` -> the listeners of that front-end
  ]],
  args = [[
    address `host:port`, or '' to state only that a front-end is there
    lease:int ms in an active namespace; in an idle one it is 120 times as long
    sweeper? the caller's token, which takes the turn to sweep if it is free, or keeps it; '' takes no turn
    clients:some|none? with none the namespace is idle, unless a renewal said otherwise within the last minute
    listeners? a text with the address of each of the caller's listeners, of at most 65,536 bytes; '' or none if its
      only listener is called `default`
  ]],
  returns = [[{0, node_id or -1, outages, [node_id, address, ...] of the live front-ends, by node id}; outages: a text
    `from-to ...` of the last long times, in ms, without any renewal, with the one that ends now. With a sweeper a fifth
    element follows: 1 if it has the turn, else 0. With clients a sixth follows: the length of the lease in ms. With
    listeners a seventh follows: [address, listeners, ...] of the live front-ends that stated listeners]],
  bound = 'the lists are as long as the front-ends of a day',
}, function(keys, params)
  frontend.check_listeners(params.listeners)
  local key, now = keys[1], value.now_ms()
  local leases, fields = frontend.read(key)
  local is_idle, wakes, lease_ms = frontend.mode(params, fields, now)
  local outages = server.outages(fields[''] or '', now)
  if wakes then
    frontend.cut(leases, fields, now, lease_ms)
  end
  local own, losers = frontend.take_lease(leases, params.address, now, lease_ms)
  local reply = { code.NONE, own and own.id or -1, outages, frontend.live(leases, now, lease_ms) }
  frontend.add(reply, params, fields, now, lease_ms)
  fields[''] = frontend.stamp(is_idle and now + lease_ms or now, outages)
  if params.clients ~= 'none' then
    fields[frontend.ACTIVE] = value.integer(now + frontend.ACTIVE_MS)
  end
  frontend.write(key, fields, wakes and leases or { [params.address] = own }) -- first write
  frontend.write_listeners(key, fields, params.address, params.listeners or '')
  for _, loser in ipairs(losers) do
    calls.call('HDEL', key, loser, frontend.LISTENERS .. loser)
  end
  if wakes then
    calls.call('SPUBLISH', key, 'active')
  end
  return reply
end)

korvet.define({
  name = 'frontend_leave', flags = { 'allow-oom' },
  description = 'end the lease of an address, which keeps its node id',
  keys = 'frontends hash as in frontend_renew',
  args = "address '' if the caller has none   sweeper? the caller's token, whose turn to sweep ends",
  returns = '{0}',
}, function(keys, params)
  local address = params.address
  local leases, fields = frontend.read(keys[1])
  local _, holder = frontend.turn(fields)
  local lease, now = leases[address], value.now_ms()
  if params.sweeper and holder == params.sweeper then
    calls.call('HDEL', keys[1], frontend.TURN) -- first write
  end
  if lease and lease.lease_end > now then
    calls.call('HSET', keys[1], address, value.integer(lease.id) .. ' ' .. value.integer(now))
  end
  return { code.NONE }
end)
