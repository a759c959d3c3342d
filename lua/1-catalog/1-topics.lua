-- Topics in the catalog. The id identifies a topic: one that is created again under the same name is another.
local topic = {}

-- A topic of this name, or nil.
function topic.found(topics_key, name)
  local text = calls.call('HGET', topics_key, name)
  return text and value.decoded(text, topics_key, name)
end

-- A topic of this name and id that is not being deleted, or nil.
function topic.live(topics_key, name, id)
  local found = topic.found(topics_key, name)
  if found and found.id == id and not found.deleting then
    return found
  end
end

-- Write a topic and the catalog's next version. Returns the topic's JSON.
function topic.store(keys, name, stored)
  local text = cjson.encode(stored)
  catalog.make_keys(keys) -- first write
  calls.call('HSET', keys[2], name, text)
  catalog.publish(keys[1])
  return text
end

-- An optional bound, which may be -1 for none.
function topic.bound(number)
  return number and number >= 0 and number or nil
end

-- True if more topics and partitions would exceed a tenant's bounds, which are numbers, or nil for none.
function topic.exceeds(topics_key, more_topics, more_partitions, most_topics, most_partitions)
  -- One field has the empty name.
  if most_topics and math.max(0, calls.call('HLEN', topics_key) - 1) + more_topics > most_topics then
    return true
  elseif not most_partitions then
    return false
  end
  local partitions = more_partitions
  for _, text in ipairs(calls.call('HVALS', topics_key)) do
    -- Decoding each topic would hold Redis for long.
    partitions = partitions + tonumber(string.match(text, '"partitions":(%d+)') or 0)
  end
  return partitions > most_partitions
end

korvet.define({
  name = 'topic_create',
  description = 'add a topic to the catalog',
  keys = '@catalog',
  args = [[
    name   id hex   partitions:int   configs JSON {name: value}
    most_topics:int? the topics that there may be; -1 for no bound
    most_partitions:int? the partitions that all topics may have; -1 for no bound
  ]],
  returns = "{code, topic JSON}; the existing topic's with TOPIC_ALREADY_EXISTS, '' with another code",
  codes = 'TOPIC_ALREADY_EXISTS (also while it is being deleted), INVALID_PARTITIONS, POLICY_VIOLATION',
  source = 'ReplicationControlManager.createTopic',
}, function(keys, params)
  local configs = cjson.decode(params.configs)
  catalog.check_keys(keys)
  local existing = calls.call('HGET', keys[2], params.name)
  if existing then
    return { code.TOPIC_ALREADY_EXISTS, existing }
  end
  if params.partitions < 1 then
    return { code.INVALID_PARTITIONS, '' }
  end
  local most_topics, most_partitions = topic.bound(params.most_topics), topic.bound(params.most_partitions)
  if topic.exceeds(keys[2], 1, params.partitions, most_topics, most_partitions) then
    return { code.POLICY_VIOLATION, '' }
  end
  local created = {
    id = params.id, partitions = params.partitions, configs = configs, created_ms = value.now_ms(), deleting = false,
  }
  return { code.NONE, topic.store(keys, params.name, created) }
end)

korvet.define({
  name = 'topic_grow',
  description = 'give a topic more partitions',
  keys = '@catalog',
  args = 'name   id hex   partitions:int more than now   most_partitions:int? the partitions that all topics may have',
  returns = "{code, topic JSON}; '' if there is no such topic",
  codes = 'UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS, POLICY_VIOLATION',
  source = 'ReplicationControlManager.createPartitions',
}, function(keys, params)
  catalog.check_keys(keys)
  local found = topic.live(keys[2], params.name, params.id)
  if not found then
    return { code.UNKNOWN_TOPIC_OR_PARTITION, '' }
  end
  if params.partitions <= found.partitions then
    return { code.INVALID_PARTITIONS, cjson.encode(found) }
  end
  if topic.exceeds(keys[2], 0, params.partitions - found.partitions, nil, params.most_partitions) then
    return { code.POLICY_VIOLATION, cjson.encode(found) }
  end
  found.partitions = params.partitions
  return { code.NONE, topic.store(keys, params.name, found) }
end)

korvet.define({
  name = 'topic_configure', flags = { 'allow-oom' },
  description = 'change the settings of a topic',
  keys = '@catalog',
  args = 'name   id hex   change JSON {"set": {name: value}, "delete": [name], "replace": bool}',
  returns = "{code, topic JSON}; '' when there is no such topic",
  codes = 'UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG (it would leave the tier)',
  source = 'ConfigurationControlManager.incrementalAlterConfigs, legacyAlterConfigs',
}, function(keys, params)
  local change = cjson.decode(params.change)
  catalog.check_keys(keys)
  local found = topic.live(keys[2], params.name, params.id)
  if not found then
    return { code.UNKNOWN_TOPIC_OR_PARTITION, '' }
  end
  local configs = value.changed(found.configs, change)
  if catalog.is_tiered(found.configs) and not catalog.is_tiered(configs) then
    return { code.INVALID_CONFIG, '' }
  end
  found.configs = configs
  return { code.NONE, topic.store(keys, params.name, found) }
end)

korvet.define({
  name = 'topic_deleted', flags = { 'no-writes', 'allow-oom' },
  description = 'list the deleted topics whose objects in the tier have to go',
  keys = 'meta hash version, cluster_id, last_producer_id, notes of deleted topics',
  args = "cursor '0' at first, then the last reply's",
  returns = '{0, cursor, [`deleted:<id>`, `name partitions ms of the deletion`, ...]}; call again until it is 0',
  bound = 'about 500 topics a call',
}, function(keys, params)
  local scanned = calls.call('HSCAN', keys[1], params.cursor, 'MATCH', 'deleted:*', 'COUNT', catalog.PAGE)
  return { code.NONE, scanned[1], scanned[2] }
end)

korvet.define({
  name = 'topic_delete', flags = { 'allow-oom' },
  description = 'mark a topic as being deleted, forget one that is marked, or forget that its objects have to go',
  keys = '@catalog',
  args = 'name   id hex   step:begin|finish|clear',
  returns = '{code}; may be repeated: begin of a marked topic and finish of a forgotten one are no errors',
  notes = [[To finish a topic in the tier notes it in the meta hash, `deleted:<id>` -> `name partitions ms`. The note
    alone says that the objects of this topic id are garbage, and clear removes it after them.]],
  codes = 'UNKNOWN_TOPIC_OR_PARTITION (begin: no such topic; finish: it is not marked)',
  source = 'ReplicationControlManager.deleteTopic',
}, function(keys, params)
  local name, note = params.name, 'deleted:' .. params.id
  catalog.check_keys(keys)
  if params.step == 'clear' then
    calls.call('HDEL', keys[1], note) -- first write
    return { code.NONE }
  end
  local found = topic.found(keys[2], name)
  local is_it = found and found.id == params.id
  if params.step == 'begin' then
    if not is_it then
      return { code.UNKNOWN_TOPIC_OR_PARTITION }
    end
    if not found.deleting then
      found.deleting = true
      topic.store(keys, name, found)
    end
  elseif is_it then
    if not found.deleting then
      return { code.UNKNOWN_TOPIC_OR_PARTITION }
    end
    if catalog.is_tiered(found.configs) then
      local text = string.format('%s %d %d', name, found.partitions, value.now_ms())
      calls.call('HSET', keys[1], note, text) -- first write
    end
    calls.call('HDEL', keys[2], name)
    catalog.publish(keys[1])
  end
  return { code.NONE }
end)
