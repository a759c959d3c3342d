-- The catalog: topics, their numbers of partitions, and settings. Each front-end keeps all of it in memory. A version
-- grows with each change. The first one is a time, so none comes again after the catalog was deleted.
--
-- An empty hash does not exist, and during a slot migration Redis refuses a call if only some of its keys exist
-- (TRYAGAIN). So the first write makes all three keys, topics and configs with a field of the empty name.
local catalog = {}

-- The prefixes of settings in the configs that are not the cluster's: of groups, client metrics and brokers.
catalog.OWNED = { 'group:', 'client-metrics:', 'broker:' }

-- How many resources of a kind have settings, by the kind's prefix.
function catalog.owners(settings, prefix)
  local seen, count = {}, 0
  for name in pairs(settings) do
    local owner = string.sub(name, 1, #prefix) == prefix and string.match(name, '^[^:]+:([^:]*):')
    if owner and not seen[owner] then
      seen[owner], count = true, count + 1
    end
  end
  return count
end

-- True if more resources of a kind would have settings after a change than may have them.
function catalog.has_too_many(old, new, most)
  for _, prefix in ipairs(catalog.OWNED) do
    local count = catalog.owners(new, prefix)
    if count > most and count > catalog.owners(old, prefix) then
      return true
    end
  end
  return false
end

-- True if a setting in the configs is a resource's own, not the cluster's.
function catalog.is_owned(name)
  for _, prefix in ipairs(catalog.OWNED) do
    if string.sub(name, 1, #prefix) == prefix then
      return true
    end
  end
  return false
end

-- Write and publish the next version: the last writes of every change.
function catalog.publish(meta_key)
  local version = calls.call('HINCRBY', meta_key, 'version', 1)
  if version == 1 then
    version = clock.now_us()
    calls.call('HSET', meta_key, 'version', value.integer(version))
  end
  calls.call('SPUBLISH', meta_key, value.integer(version))
end

catalog.DELETED = ' was deleted: front-ends that know it write it back, or korvet doctor --repair'

-- True if somebody deleted the topics or the settings by hand: while there is a version, each has a field with the
-- empty name.
function catalog.is_lost(keys)
  local has_version = calls.call('HEXISTS', keys[1], 'version') == 1
  return calls.call('HEXISTS', keys[2], '') + calls.call('HEXISTS', keys[3], '') < 2 and has_version
end

-- Fail on a key of the wrong type, or on a lost one, before anything is written.
function catalog.check_keys(keys)
  if catalog.is_lost(keys) then
    error(keys[2] .. ' or ' .. keys[3] .. catalog.DELETED, 0)
  end
end

function catalog.make_keys(keys)
  calls.call('HSETNX', keys[2], '', '')
  calls.call('HSETNX', keys[3], '', '')
end

-- A page has about so many topics.
catalog.PAGE = 500

-- A flat reply of HGETALL or HSCAN without the field of the empty name.
function catalog.named(flat)
  local fields = {}
  for at = 1, #flat, 2 do
    if flat[at] ~= '' then
      fields[#fields + 1] = flat[at]
      fields[#fields + 1] = flat[at + 1]
    end
  end
  return fields
end

-- The fields of a hash as names and values in turn.
function catalog.fields(key)
  return catalog.named(calls.call('HGETALL', key))
end

-- A page of a hash, and the cursor of the next one: the replication id of this server and HSCAN's own cursor, which
-- means nothing to another server. Returns nil if the cursor is another server's.
function catalog.page(key, cursor)
  local replid, from = string.match(cursor, '^(%x+):(%d+)$')
  local own = server.ask_replid()
  if replid and replid ~= own then
    return nil
  end
  local scanned = calls.call('HSCAN', key, from or '0', 'COUNT', catalog.PAGE)
  return catalog.named(scanned[2]), scanned[1] ~= '0' and own .. ':' .. scanned[1] or '0'
end

korvet.define({
  name = 'catalog_read', flags = { 'no-writes', 'allow-oom' },
  description = 'everything in the catalog, or only its version if the caller knows that version',
  keys = '@catalog',
  args = [[
    known_version:int a version, or -1
    cursor? 0 for the first page, which alone has the settings, then the last reply's cursor
  ]],
  returns = [[{0, version, cluster_id or '', [name, topic JSON, ...], [config, value, ...]}, and with a cursor the next
    one behind these: call again until it is '0'; empty arrays and '0' when known_version is the version]],
  bound = '500 topics a call; about, with a cursor',
  codes = "RETRY (the cursor is another server's: begin with 0 again), LOST (topics or settings were deleted by hand)",
  notes = [[Topics come in pages if a cursor is given. Each is then as it was at the first page's version, or later: a
    topic that was there all the time is in some page, and one that changed meanwhile has raised the version.]],
}, function(keys, params)
  local cursor = params.cursor
  local is_first = not cursor or cursor == '0'
  local meta = calls.call('HMGET', keys[1], 'version', 'cluster_id')
  local version = tonumber(meta[1] or 0)
  local cluster_id = meta[2] or ''
  if catalog.is_lost(keys) then
    return { code.LOST, version, cluster_id, {}, {}, '0' }
  end
  if is_first and version == params.known_version then
    return { code.NONE, version, cluster_id, {}, {}, cursor }
  elseif not cursor then
    return { code.NONE, version, cluster_id, catalog.fields(keys[2]), catalog.fields(keys[3]) }
  end
  local topics, following = catalog.page(keys[2], cursor)
  if not topics then
    return { code.RETRY, version, cluster_id, {}, {}, '0' }
  end
  return { code.NONE, version, cluster_id, topics, is_first and catalog.fields(keys[3]) or {}, following }
end)

korvet.define({
  name = 'catalog_init',
  description = 'give the catalog its cluster id, once',
  keys = '@catalog',
  args = 'cluster_id to use when there is none',
  returns = '{0, cluster_id}',
}, function(keys, params)
  catalog.check_keys(keys)
  local cluster_id = calls.call('HGET', keys[1], 'cluster_id')
  if not cluster_id then
    cluster_id = params.cluster_id
    catalog.make_keys(keys) -- first write
    calls.call('HSET', keys[1], 'cluster_id', cluster_id)
    catalog.publish(keys[1])
  end
  return { code.NONE, cluster_id }
end)

-- True if a topic with these configs has its batches in the tier.
function catalog.is_tiered(configs)
  return string.find(string.lower(configs['remote.storage.enable'] or ''), '^%s*true%s*$') ~= nil
end

-- True if any topic, also one that is being deleted, has its batches in the tier.
function catalog.has_tiered(topics_key)
  for _, text in ipairs(calls.call('HVALS', topics_key)) do
    if text ~= '' and catalog.is_tiered(cjson.decode(text).configs) then
      return true
    end
  end
  return false
end

korvet.define({
  name = 'catalog_tier', flags = { 'allow-oom' },
  description = 'name the tier of the namespace, if it has none, or if no topic is in the one that it has',
  keys = '@catalog',
  args = "former '' for none   id of at most 64 bytes, that the first owner of the tier gave it",
  returns = '{0, id}: the tier that the namespace has then; may be repeated',
  bound = 'all topics, if the tier is another one than before',
  source = 'RemoteLogManagerConfig.isRemoteStorageSystemEnabled',
}, function(keys, params)
  catalog.check_keys(keys)
  local id = calls.call('HGET', keys[1], 'tier') or ''
  if id == params.former and id ~= params.id and (id == '' or not catalog.has_tiered(keys[2])) then
    if params.id == '' or #params.id > 64 then
      error('a tier has an id of 1 to 64 bytes', 0)
    end
    id = params.id
    calls.call('HSET', keys[1], 'tier', id) -- first write
  end
  return { code.NONE, id }
end)

korvet.define({
  name = 'catalog_configure', flags = { 'allow-oom' },
  description = 'change cluster-wide dynamic settings',
  keys = '@catalog',
  args = [[
    change JSON {"set": {name: value}, "delete": [name], "replace": bool}
    most:int? the most resources of one kind, of groups for example, that may have settings
    step:change|check? check: change nothing
  ]],
  returns = '{code}',
  codes = 'POLICY_VIOLATION (more than most would have settings)',
  source = 'ConfigurationControlManager.incrementalAlterConfigs, legacyAlterConfigs',
  notes = 'To replace them leaves the settings of groups, client metrics and single brokers.',
}, function(keys, params)
  local change = cjson.decode(params.change)
  catalog.check_keys(keys)
  local old = value.pairs(catalog.fields(keys[3]))
  local new = value.changed(old, change)
  if params.most and catalog.has_too_many(old, new, params.most) then
    return { code.POLICY_VIOLATION }
  elseif params.step == 'check' then
    return { code.NONE }
  end
  catalog.make_keys(keys) -- first write
  for name in pairs(old) do
    local is_kept = change.replace and catalog.is_owned(name)
    if new[name] == nil and not is_kept then
      calls.call('HDEL', keys[3], name)
    end
  end
  for name, setting in pairs(new) do
    calls.call('HSET', keys[3], name, setting)
  end
  catalog.publish(keys[1])
  return { code.NONE }
end)

korvet.define({
  name = 'producer_id', flags = { 'allow-oom' },
  description = 'hand out a producer id that was never handed out, even if history went back',
  keys = '@catalog',
  args = 'above:int? an id that was handed out, as a tier knows',
  returns = '{0, producer_id}; the greatest of the last one + 1, above + 1 and the microseconds since 1970',
}, function(keys, params)
  local last = tonumber(calls.call('HGET', keys[1], 'last_producer_id') or -1)
  local producer_id = math.max(last + 1, (params.above or -1) + 1, clock.now_us())
  calls.call('HSET', keys[1], 'last_producer_id', value.integer(producer_id)) -- first write
  return { code.NONE, producer_id }
end)
