-- The target assignment: what a front-end computes it from, and how it is installed.
group.USAGE.snapshot = { 'outages' }
group.USAGE.assign = { 'outages generation target_epoch catalog_version topics assignor [member_id target ...]' }

-- The target assignments of members, in their order.
function consumer.targets(g, ids)
  local fields, targets = {}, {}
  for at, id in ipairs(ids) do
    fields[at] = 'target:' .. id
  end
  for first = 1, #fields, group.BATCH do
    local last = math.min(first + group.BATCH - 1, #fields)
    local found = redis.call('HMGET', g.keys[1], unpack(fields, first, last))
    for at = first, last do
      targets[at] = found[at - first + 1] or ''
    end
  end
  return targets
end

-- group_snapshot: what a target assignment is made from
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] outages: `served_until from-to ...` or ''
-- Returns {code}, or {0, name, value, ...} of generation, target_epoch, catalog_version, topics, assignor (of the
-- present target), members. members: [[name, value, ...], ...] of member_id, instance_id, rack, assignor, regex, topics
-- (names), target, is_classic, sorted by member_id. It is of the group as it was last written: who is overdue is in it
-- Codes: GROUP_ID_NOT_FOUND
function consumer.snapshot(keys, args)
  group.expect(keys, args, 'snapshot', 1)
  local g = group.open(keys)
  if not group.is_consumer(g) then
    return { code.GROUP_ID_NOT_FOUND }
  end
  local ids, members = group.member_ids(g), {}
  table.sort(ids)
  for at, target in ipairs(consumer.targets(g, ids)) do
    local member = g.members[ids[at]]
    members[at] = {
      'member_id', ids[at], 'instance_id', member.instance_id, 'rack', member.rack, 'assignor', member.assignor,
      'regex', member.regex, 'topics', member.names, 'target', target, 'is_classic', member.classic and 1 or 0,
    }
  end
  return {
    code.NONE, 'generation', g.fields.generation, 'target_epoch', g.fields.target_epoch,
    'catalog_version', g.fields.catalog_version or '', 'topics', redis.call('HGET', keys[1], 'topics') or '',
    'assignor', g.fields.assignor or '', 'members', members,
  }
end
redis.register_function{
  function_name = 'korvet_group_snapshot',
  callback = consumer.snapshot,
  flags = { 'no-writes', 'allow-oom' },
  description = 'what a target assignment is made from',
}

-- Whether there is a member, without a look at it.
function consumer.has(g, id)
  if g.members[id] == nil then
    return redis.call('HGET', g.keys[2], id) ~= false
  end
  return g.members[id] and true
end

-- Whether a target that was made from a snapshot can be installed: nobody else installed one since, and the members
-- that it names are those of the snapshot, unless the group changed and gets another one anyway.
function consumer.takes_target(g, generation, target_epoch, args)
  if target_epoch ~= g.fields.target_epoch or generation > g.fields.generation then
    return false
  end
  if generation == g.fields.generation then
    for at = 7, #args, 2 do
      if not consumer.has(g, args[at]) then
        return false
      end
    end
  end
  return true
end

-- The epoch of a target that was made from a snapshot. Topics that changed while the target was up to date raise the
-- group epoch; nil where the target is to be made anew for that.
-- Source: GroupMetadataManager.updateSubscriptionMetadata
function consumer.epoch_of_target(g, generation, has_other_topics)
  if generation > g.fields.target_epoch or not has_other_topics then
    return generation
  elseif generation == g.fields.generation then
    return generation + 1
  end
end

-- Nobody is settled when there is a new target. Members that left meanwhile have none.
function consumer.install(g, epoch, args)
  group.set(g, 'catalog_version', args[4])
  g.places.topics = args[5]
  if epoch == g.fields.target_epoch then
    return
  end
  group.set(g, 'generation', math.max(g.fields.generation, epoch))
  group.set(g, 'target_epoch', epoch)
  group.set(g, 'settled', 0)
  group.set(g, 'assignor', args[6])
  for at = 7, #args, 2 do
    if consumer.has(g, args[at]) then
      g.places['target:' .. args[at]] = args[at + 1] ~= '' and args[at + 1] or false
    end
  end
end

-- group_assign: install a target assignment that was made from a snapshot
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] outages: `served_until from-to ...` or ''
-- ARGV[2] generation and ARGV[3] target_epoch of the snapshot
-- ARGV[4] catalog_version that it was made of
-- ARGV[5] topics, a line `name topic_id partitions` for each that somebody subscribes to
-- ARGV[6] assignor   ARGV[7..] targets: member_id, target, ... of the members whose target is another by now
-- Returns {code, generation, target_epoch}, of the group as it is by then
-- Codes: GROUP_ID_NOT_FOUND, RETRY (with another snapshot)
-- Source: GroupMetadataManager.updateTargetAssignment
function consumer.assign(keys, args)
  group.expect(keys, args, 'assign', 6, 2)
  local generation, target_epoch = value.number(args[2], 'generation'), value.number(args[3], 'target_epoch')
  local g = group.open(keys)
  group.advance(g, args[1])
  if not group.is_consumer(g) then
    group.save(g)
    return { code.GROUP_ID_NOT_FOUND, 0, 0 }
  end
  local has_other_topics = args[5] ~= (redis.call('HGET', keys[1], 'topics') or '')
  local epoch = consumer.takes_target(g, generation, target_epoch, args)
    and consumer.epoch_of_target(g, generation, has_other_topics)
  if epoch then
    consumer.install(g, epoch, args)
  end
  consumer.save(g)
  return { epoch and code.NONE or code.RETRY, g.fields.generation, g.fields.target_epoch }
end
redis.register_function{
  function_name = 'korvet_group_assign',
  callback = consumer.assign,
  flags = { 'allow-oom' },
  description = 'install a target assignment that was made from a snapshot',
}
