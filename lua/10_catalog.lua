-- The catalog: which topics there are, how many partitions they have, and what was configured. Small, read whole,
-- cached by every front-end and known by a version that grows with each change.
--
-- A hash that has no content yet would not exist, and during a slot migration a call with some keys present and some
-- missing is refused (TRYAGAIN). So the first write makes all three keys, topics and configs with a field of the
-- empty name.
local catalog = {}

-- Fields of the configs that are a group's begin with this.
catalog.GROUP = 'group:'

-- The next version, written and published: the last writes of every change.
function catalog.publish(meta_key)
  local version = redis.call('HINCRBY', meta_key, 'version', 1)
  redis.call('SPUBLISH', meta_key, value.integer(version))
end

-- Fail on a key of the wrong type while nothing is written.
function catalog.check_keys(keys)
  for _, key in ipairs(keys) do
    redis.call('HLEN', key)
  end
end

function catalog.make_keys(keys)
  redis.call('HSETNX', keys[2], '', '')
  redis.call('HSETNX', keys[3], '', '')
end

-- A flat reply of a hash without its field of the empty name.
function catalog.fields(key)
  local fields = {}
  local flat = redis.call('HGETALL', key)
  for at = 1, #flat, 2 do
    if flat[at] ~= '' then
      fields[#fields + 1] = flat[at]
      fields[#fields + 1] = flat[at + 1]
    end
  end
  return fields
end

-- catalog_read: everything in the catalog, or only its version where that is the known one
-- KEYS[1] meta    hash  version, cluster_id, last_producer_id
-- KEYS[2] topics  hash  name -> topic JSON
-- KEYS[3] configs hash  name -> cluster-wide dynamic setting
-- ARGV[1] known_version   a version, or -1
-- Returns {0, version, cluster_id or '', [name, topic JSON, ...], [config, value, ...]}; empty arrays when
-- known_version is the version
function catalog.read(keys, args)
  local known = value.number(args[1], 'known_version')
  local meta = redis.call('HMGET', keys[1], 'version', 'cluster_id')
  local version = tonumber(meta[1] or 0)
  local cluster_id = meta[2] or ''
  if version == known then
    return { code.NONE, version, cluster_id, {}, {} }
  end
  return { code.NONE, version, cluster_id, catalog.fields(keys[2]), catalog.fields(keys[3]) }
end
redis.register_function{
  function_name = 'korvet_catalog_read',
  callback = catalog.read,
  flags = { 'no-writes', 'allow-oom' },
  description = 'everything in the catalog, or only its version where that is the known one',
}

-- catalog_init: give the catalog its cluster id, once
-- KEYS[1] meta    hash  version, cluster_id, last_producer_id
-- KEYS[2] topics  hash  name -> topic JSON
-- KEYS[3] configs hash  name -> cluster-wide dynamic setting
-- ARGV[1] cluster_id   to use when there is none
-- Returns {0, cluster_id}
function catalog.init(keys, args)
  catalog.check_keys(keys)
  local cluster_id = redis.call('HGET', keys[1], 'cluster_id')
  if not cluster_id then
    cluster_id = args[1]
    catalog.make_keys(keys) -- first write
    redis.call('HSET', keys[1], 'cluster_id', cluster_id)
    catalog.publish(keys[1])
  end
  return { code.NONE, cluster_id }
end
redis.register_function{
  function_name = 'korvet_catalog_init',
  callback = catalog.init,
  description = 'give the catalog its cluster id, once',
}

-- catalog_configure: change cluster-wide dynamic settings
-- KEYS[1] meta    hash  version, cluster_id, last_producer_id
-- KEYS[2] topics  hash  name -> topic JSON
-- KEYS[3] configs hash  name -> cluster-wide dynamic setting
-- ARGV[1] change   JSON {"set": {name: value}, "delete": [name], "replace": bool}, which replaces none of a group's
-- Returns {0}
-- Source: ConfigurationControlManager.incrementalAlterConfigs, legacyAlterConfigs
function catalog.configure(keys, args)
  local change = cjson.decode(args[1])
  catalog.check_keys(keys)
  local old = value.pairs(catalog.fields(keys[3]))
  local new = value.changed(old, change)
  catalog.make_keys(keys) -- first write
  for name in pairs(old) do
    local is_kept = change.replace and string.sub(name, 1, #catalog.GROUP) == catalog.GROUP
    if new[name] == nil and not is_kept then
      redis.call('HDEL', keys[3], name)
    end
  end
  for name, setting in pairs(new) do
    redis.call('HSET', keys[3], name, setting)
  end
  catalog.publish(keys[1])
  return { code.NONE }
end
redis.register_function{
  function_name = 'korvet_catalog_configure',
  callback = catalog.configure,
  flags = { 'allow-oom' },
  description = 'change cluster-wide dynamic settings',
}

-- producer_id: hand out a producer id that was never handed out, even where history went back
-- KEYS[1] meta    hash  version, cluster_id, last_producer_id
-- KEYS[2] topics  hash  name -> topic JSON
-- KEYS[3] configs hash  name -> cluster-wide dynamic setting
-- Returns {0, producer_id}; the greater of the last one + 1 and the microseconds since 1970
function catalog.producer_id(keys)
  local last = tonumber(redis.call('HGET', keys[1], 'last_producer_id') or -1)
  local producer_id = math.max(last + 1, clock.now_us())
  redis.call('HSET', keys[1], 'last_producer_id', value.integer(producer_id)) -- first write
  return { code.NONE, producer_id }
end
redis.register_function{
  function_name = 'korvet_producer_id',
  callback = catalog.producer_id,
  flags = { 'allow-oom' },
  description = 'hand out a producer id that was never handed out, even where history went back',
}
