-- Redis groups mirror a Kafka group. The attached hash: `topic:partition` -> the topic's id, for each partition that
-- has a Redis group or is about to get one. The field of the empty name holds the front-end of the last mirror's call.
-- The hash has no expiry, so that a group's Redis groups are found when the group itself has expired. A share group has
-- the topics with its share partitions there, topic -> `topic_id partitions`.

-- Partitions with Redis groups and their topics' ids: all of them, or some of very many.
function group.redis_groups(attached_key)
  local flat, cursor
  if redis.call('HLEN', attached_key) <= group.BATCH then
    flat = redis.call('HGETALL', attached_key)
  else
    repeat
      local scanned = redis.call('HSCAN', attached_key, cursor or '0', 'COUNT', group.BATCH)
      cursor, flat = scanned[1], scanned[2]
    until #flat > 2 or cursor == '0'
  end
  local topic_ids = value.pairs(flat)
  topic_ids[''] = nil
  return topic_ids
end

-- True if a group exists, without a look at its members.
function group.is_there(group_key)
  local fields = redis.call('HMGET', group_key, 'state', 'expires_at', 'transactions')
  return fields[1] and not group.has_expired(fields[2], fields[3], value.now_ms())
end

-- The committed offset of a partition as text; '' if this topic has none, or none that a stream could hold.
function group.committed_offset(text, topic_id)
  local offset, of = string.match(text or '', '^(%d+) %-?%d+ (%S+)')
  return of == topic_id and offset or ''
end

korvet.define({
  name = 'group_attach', flags = { 'allow-oom' },
  description = 'note the partitions that have or get a Redis group, and return the positions in them',
  keys = '@group   attached hash topic:partition -> id of the topic with a Redis group there',
  args = [[
    mirror the name of the front-end that mirrors commits, '' before a Fetch. The group remembers the partitions that a
      mirror names if they have an offset.
    partitions*2<=1000 `topic:partition`, topic_id, ...
  ]],
  returns = [[{code}, or {0, was_last, [offset, ...]}, one committed offset for each, '' if there is none; was_last is 1
    if no other mirror called since this one did, so that its Redis groups are where it moved them; may be repeated]],
  codes = 'GROUP_ID_NOT_FOUND',
}, function(keys, params)
  local mirror, wanted = params.mirror, value.pairs(params.partitions)
  if not group.is_there(keys[1]) then
    return { code.GROUP_ID_NOT_FOUND }
  end
  local last_mirror = redis.call('HGET', keys[6], '')
  local changed = mirror ~= '' and last_mirror ~= mirror and { '', mirror } or {}
  local names, offsets = {}, {}
  for at = 1, #params.partitions, 2 do
    names[#names + 1] = params.partitions[at]
  end
  for first = 1, #names, group.BATCH do
    local last = math.min(first + group.BATCH - 1, #names)
    local committed = redis.call('HMGET', keys[5], unpack(names, first, last))
    local known = redis.call('HMGET', keys[6], unpack(names, first, last))
    for at = first, last do
      local topic_id = wanted[names[at]]
      offsets[at] = group.committed_offset(committed[at - first + 1], topic_id)
      -- A late mirror may name a former topic of the name. The id of the present topic stays.
      if known[at - first + 1] ~= topic_id and (mirror == '' or offsets[at] ~= '') then
        changed[#changed + 1] = names[at]
        changed[#changed + 1] = topic_id
      end
    end
  end
  group.in_batches('HSET', keys[6], changed) -- first write
  return { code.NONE, last_mirror == mirror and 1 or 0, offsets }
end)

korvet.define({
  name = 'group_attached', flags = { 'no-writes', 'allow-oom' },
  description = 'the partitions of the Redis groups to destroy before a group is deleted',
  keys = '@group   attached hash topic:partition -> id of the topic with a Redis group there',
  args = 'outages?',
  returns = [[{code, [`topic:partition`, topic_id, ...]}, with GROUP_ID_NOT_FOUND the remains of a group that expired;
    very many come in steps: call again when these are detached]],
  bound = '1000 partitions a call',
  codes = 'GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP',
  source = 'ClassicGroup.validateDeleteGroup',
}, function(keys, params)
  local g = group.open_beside(keys)
  group.advance(g, params.outages)
  if group.exists(g) and not group.is(g, 'Empty') then
    return { code.NON_EMPTY_GROUP, {} }
  end
  local flat = {}
  for partition, topic_id in pairs(group.redis_groups(keys[6])) do
    if #flat < group.BATCH then
      flat[#flat + 1] = partition
      flat[#flat + 1] = topic_id
    end
  end
  return { group.exists(g) and code.NONE or code.GROUP_ID_NOT_FOUND, flat }
end)

korvet.define({
  name = 'group_detach', flags = { 'allow-oom' },
  description = 'forget partitions whose Redis groups are destroyed, before a group is deleted',
  keys = '@group   attached hash topic:partition -> id of the topic with a Redis group there',
  args = "partitions*2<=1000 `topic:partition`, topic_id, ... A partition with another topic's id stays",
  returns = 'the number of forgotten partitions; may be repeated',
  notes = [[Of a share group they are topics whose share partitions are deleted. Its next target begins those of all its
    topics again.]],
}, function(keys, params)
  local gone = {}
  for partition, topic_id in pairs(value.pairs(params.partitions)) do
    if redis.call('HGET', keys[6], partition) == topic_id then
      gone[#gone + 1] = partition
    end
  end
  if redis.call('HGET', keys[1], 'type') == 'share' then
    redis.call('HDEL', keys[1], 'topics', 'catalog_version') -- first write
  end
  group.in_batches('HDEL', keys[6], gone)
  return #gone
end)

-- True if any group may be deleted, false for expired ones alone.
function group.deletes_any(which)
  if which ~= 'any' and which ~= 'expired' then
    error('which is neither any nor expired: ' .. tostring(which), 0)
  end
  return which == 'any'
end

-- True if all remaining Redis groups are among the destroyed ones.
function group.is_detached(attached_key, detached)
  for partition, topic_id in pairs(group.redis_groups(attached_key)) do
    if detached[partition] ~= topic_id then
      return false
    end
  end
  return redis.call('HLEN', attached_key) <= group.BATCH
end

korvet.define({
  name = 'group_delete', flags = { 'allow-oom' },
  description = 'remove a group without members, and its offsets, when its Redis groups are destroyed',
  keys = [[
    @group   attached hash topic:partition -> id of the topic with a Redis group there
    pending? hash producer id -> its transactions and the offsets of the open one
  ]],
  args = [[
    outages   which any, or expired for the remains of an expired group alone
    partitions*2<=1000 that were detached: `topic:partition`, topic_id, ...
  ]],
  returns = 'code',
  codes = [[LATE, GROUP_ID_NOT_FOUND (and nothing is left of it), NON_EMPTY_GROUP (also of a group that exists, if which
    is expired), RETRY]],
  source = 'ClassicGroup.validateDeleteGroup, GroupCoordinatorShard.deleteGroups',
}, function(keys, params)
  local deletes_any, detached = group.deletes_any(params.which), value.pairs(params.partitions)
  if deletes_any and group.is_late(params.outages) then
    return code.LATE
  end
  local g = group.open_beside(keys)
  group.advance(g, params.outages)
  local exists = group.exists(g)
  if exists and not (deletes_any and group.is(g, 'Empty')) then
    group.save(g) -- first write
    return code.NON_EMPTY_GROUP
  end
  if not group.is_detached(keys[6], detached) then
    return code.RETRY
  end
  if keys[7] then
    redis.call('HLEN', keys[7])
  end
  redis.call('UNLINK', unpack(keys, 1, 6)) -- first write
  if keys[7] then
    group.void_pending(keys[7], '!', g.now)
  end
  return exists and code.NONE or code.GROUP_ID_NOT_FOUND
end)
