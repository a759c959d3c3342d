-- Redis groups follow a Kafka group. The attached hash: place `topic:partition` -> id of the topic on whose partition
-- there is a Redis group, or is about to be. The field of the empty name holds who was last here to follow commits. The
-- hash has no expiry, so that a group's Redis groups can be found when the group itself has expired.
group.USAGE.attach = { 'follower [topic:partition topic_id ...]', ' attached' }
group.USAGE.attached = { '[outages]', ' attached' }
group.USAGE.delete = { 'outages which [topic:partition topic_id ...]', ' attached' }

-- The places of the attached hash and their topics' ids.
function group.attachments(attached_key)
  local places = value.pairs(redis.call('HGETALL', attached_key))
  places[''] = nil
  return places
end

-- Pairs of arguments from one on, as a table.
function group.pairs_from(args, first)
  local places = {}
  for at = first, #args, 2 do
    places[args[at]] = args[at + 1]
  end
  return places
end

-- The group as the functions of groups see it.
function group.open_attached(keys, outages)
  local g = group.open({ unpack(keys, 1, 5) })
  group.advance(g, outages)
  return g
end

-- Whether there is such a group, without a look at its members.
function group.is_there(group_key)
  local fields = redis.call('HMGET', group_key, 'state', 'expires_at', 'transactions')
  return fields[1] and not group.has_expired(fields[2], fields[3], value.now_ms())
end

-- The committed offset of a place as text; '' where there is none of this topic, or none that a stream could hold.
function group.committed_offset(text, topic_id)
  local offset, of = string.match(text or '', '^(%d+) %-?%d+ (%S+)')
  return of == topic_id and offset or ''
end

-- group_attach: remember where there is a Redis group, or is about to be, and tell where these should stand
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- KEYS[6] attached hash  topic:partition -> id of the topic with a Redis group there
-- ARGV[1] follower: the name of who follows commits, '' for who does not. What a follower names is remembered where
-- it is committed.
-- ARGV[2..] places: `topic:partition`, topic_id, ...
-- Returns {code}, or {0, was_last, [offset, ...]}, one committed offset for each, '' where there is none; was_last is 1
-- where nobody else called since this follower did, so that what it moved is where it moved it; may be repeated
-- Codes: GROUP_ID_NOT_FOUND
function group.attach(keys, args)
  group.expect(keys, args, 'attach', 1, 2, 1)
  local wanted = group.pairs_from(args, 2)
  if not group.is_there(keys[1]) then
    return { code.GROUP_ID_NOT_FOUND }
  end
  local follower = redis.call('HGET', keys[6], '')
  local changed = args[1] ~= '' and follower ~= args[1] and { '', args[1] } or {}
  local names, offsets = {}, {}
  for at = 2, #args, 2 do
    names[#names + 1] = args[at]
  end
  for first = 1, #names, group.BATCH do
    local last = math.min(first + group.BATCH - 1, #names)
    local committed = redis.call('HMGET', keys[5], unpack(names, first, last))
    local known = redis.call('HMGET', keys[6], unpack(names, first, last))
    for at = first, last do
      local topic_id = wanted[names[at]]
      offsets[at] = group.committed_offset(committed[at - first + 1], topic_id)
      -- Who follows late may do it for a former topic of the name: what is remembered of the present one stays.
      if known[at - first + 1] ~= topic_id and (args[1] == '' or offsets[at] ~= '') then
        changed[#changed + 1] = names[at]
        changed[#changed + 1] = topic_id
      end
    end
  end
  group.in_batches('HSET', keys[6], changed) -- first write
  return { code.NONE, follower == args[1] and 1 or 0, offsets }
end
redis.register_function{
  function_name = 'korvet_group_attach',
  callback = group.attach,
  flags = { 'allow-oom' },
  description = 'remember where there is a Redis group, or is about to be, and tell where these should stand',
}

-- group_attached: the places whose Redis groups are to be destroyed before a group is deleted
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- KEYS[6] attached hash  topic:partition -> id of the topic with a Redis group there
-- ARGV[1] outages (optional): `served_until from-to ...` or ''
-- Returns {code, [`topic:partition`, topic_id, ...]}, with GROUP_ID_NOT_FOUND what is left of one that expired
-- Codes: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP
-- Source: ClassicGroup.validateDeleteGroup
function group.attached(keys, args)
  group.expect(keys, args, 'attached', 0, 1, 1)
  local g = group.open_attached(keys, args[1])
  if group.exists(g) and not group.is(g, 'Empty') then
    return { code.NON_EMPTY_GROUP, {} }
  end
  local flat = {}
  for place, topic_id in pairs(group.attachments(keys[6])) do
    flat[#flat + 1] = place
    flat[#flat + 1] = topic_id
  end
  return { group.exists(g) and code.NONE or code.GROUP_ID_NOT_FOUND, flat }
end
redis.register_function{
  function_name = 'korvet_group_attached',
  callback = group.attached,
  flags = { 'no-writes', 'allow-oom' },
  description = 'the places whose Redis groups are to be destroyed before a group is deleted',
}

-- group_delete: remove a group without members, and its offsets, when its Redis groups are destroyed
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- KEYS[6] attached hash  topic:partition -> id of the topic with a Redis group there
-- KEYS[7] pending  hash  (optional) producer id -> its transactions and the offsets of the open one
-- ARGV[1] outages: `served_until from-to ...` or ''
-- ARGV[2] which: any, or only one that is expired, of which there may be remains
-- ARGV[3..] places that were detached: `topic:partition`, topic_id, ...
-- Returns code
-- Codes: GROUP_ID_NOT_FOUND (and nothing is left of it), NON_EMPTY_GROUP (also of one that is not expired but should
-- be), RETRY
-- Source: ClassicGroup.validateDeleteGroup, GroupCoordinatorShard.deleteGroups
function group.delete(keys, args)
  group.expect(keys, args, 'delete', 2, 2, keys[7] and 2 or 1)
  local detached = group.pairs_from(args, 3)
  if args[2] ~= 'any' and args[2] ~= 'expired' then
    error('which is neither any nor expired: ' .. tostring(args[2]), 0)
  end
  local g = group.open_attached(keys, args[1])
  local exists = group.exists(g)
  if exists and (args[2] == 'expired' or not group.is(g, 'Empty')) then
    group.save(g) -- first write
    return code.NON_EMPTY_GROUP
  end
  for place, topic_id in pairs(group.attachments(keys[6])) do
    if detached[place] ~= topic_id then
      return code.RETRY
    end
  end
  if keys[7] then
    redis.call('HLEN', keys[7])
  end
  redis.call('UNLINK', unpack(keys, 1, 6)) -- first write
  if keys[7] then
    group.close_pending(keys[7])
  end
  return exists and code.NONE or code.GROUP_ID_NOT_FOUND
end
redis.register_function{
  function_name = 'korvet_group_delete',
  callback = group.delete,
  flags = { 'allow-oom' },
  description = 'remove a group without members, and its offsets, when its Redis groups are destroyed',
}
