-- The state that the library keeps of its server.
--
-- A server writes under a replication id (INFO's master_replid). It takes another id when it starts and when it is
-- promoted, even if it was the primary before and keeps its run id. It also takes one when its replication backlog
-- begins anew, which loses nothing. So writes under another id may have lost their end, or what came after them.
--
-- Asking for the id costs a fourth of an append. So the library remembers it until the next probe, a second later, or
-- until a front-end connects. A demotion leads to one of these: the server refuses the probe, and front-ends then
-- connect anew. A replica that gets all of its primary's data gets the library too, and so forgets the id.
-- One case is left. A demotion and a promotion come between two probes, and the server lost only what others wrote in
-- between: then appends within that second go into the former epoch.
local server = {}

-- Ask the server for the replication id under which it writes.
function server.ask_replid()
  server.known = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
  return server.known
end

-- The replication id under which this server writes.
function server.replid()
  return server.known or server.ask_replid()
end

-- A time without any call counts as an outage if it is longer than SILENCE_MS. The library remembers the last OUTAGES
-- outages, for REMEMBERED_MS.
server.SILENCE_MS = 2500
server.OUTAGES = 4
server.REMEMBERED_MS = 3600000
-- The text of the last probe, kept for callers that are no front-ends. They have no other knowledge of outages.
server.told = nil
-- The elements of a key whose memory counts for that of all.
server.SAMPLES = 50

-- The outages in a text `ms of the last call from-to ...`, and the outage that ends now, if any.
function server.outages(text, now)
  local last, told = string.match(text, '^(%d+)([ %d%-]*)$')
  local spans = {}
  for from, to in string.gmatch(told or '', ' (%d+)%-(%d+)') do
    spans[#spans + 1] = from .. '-' .. to
  end
  if last and now - last > server.SILENCE_MS then
    spans[#spans + 1] = last .. '-' .. value.integer(now)
  end
  return table.concat(spans, ' ', math.max(#spans - server.OUTAGES + 1, 1))
end

korvet.define({
  name = 'probe', flags = { 'allow-oom' },
  description = 'note that the server takes writes now, and return when it did before',
  keys = 'served? string on this server: `ms of the last probe by any front-end from-to ...`',
  returns = [[{now_ms, replication id, served}, times in ms since 1970 by the server's clock; served is the key's former
    text with the outage that ends now, or '' if there was none]],
  notes = [[A server refuses it whenever it refuses writes (READONLY, NOREPLICAS, MISCONF, CLUSTERDOWN), except at
    maxmemory.]],
}, function(keys)
  local now, told = value.now_ms(), ''
  if keys[1] then
    local text = redis.pcall('GET', keys[1])
    text = type(text) == 'string' and text or ''
    local outages = server.outages(text, now)
    outages = outages ~= '' and ' ' .. outages or ''
    told = (string.match(text, '^%d+') or '') .. outages
    server.told = value.integer(now) .. outages
    redis.call('SET', keys[1], server.told, 'PX', server.REMEMBERED_MS) -- first write
  end
  return { now, server.ask_replid(), told }
end)

korvet.define({
  name = 'connected', flags = { 'no-writes', 'allow-oom', 'allow-stale' },
  description = "forget the server's replication id, because a front-end connected",
  returns = '0',
}, function()
  server.known = nil
  return 0
end)

korvet.define({
  name = 'key_clear', flags = { 'allow-oom' },
  description = "remove a key that is of another type than korvet's",
  keys = 'key of any type',
  args = 'type the type that it must have, as TYPE names it',
  returns = '1 if it was removed, else 0; may be repeated',
}, function(keys, params)
  local found = redis.call('TYPE', keys[1]).ok
  if found == 'none' or found == params.type then
    return 0
  end
  return redis.call('UNLINK', keys[1]) -- first write
end)

korvet.define({
  name = 'unit_size', flags = { 'no-writes', 'allow-oom' },
  description = 'the memory that keys of a unit take',
  keys = 'keys* of any type; those that are not there take none',
  returns = 'bytes, about: of a key with many elements some are looked at',
  bound = '200 keys',
}, function(keys)
  local bytes = 0
  for _, key in ipairs(keys) do
    bytes = bytes + (redis.call('MEMORY', 'USAGE', key, 'SAMPLES', server.SAMPLES) or 0)
  end
  return bytes
end)
