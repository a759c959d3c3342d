-- The target assignment: the snapshot for the front-end that computes it, and its installation.

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

korvet.define({
  name = 'group_snapshot', flags = { 'no-writes', 'allow-oom' },
  description = 'the members and topics from which a target assignment is made',
  keys = '@group',
  args = 'outages   cursor? of the last call',
  returns = [=[{code}, or {0, name, value, ...} of id, type (consumer or share), generation, target_epoch,
    catalog_version, topics, assignor (of the present target), members. members: [[name, value, ...], ...] of member_id,
    instance_id, rack, assignor, regex, topics (names), target, is_classic, sorted by member_id; regex only once it
    counts; and cursor. The group is as it was last written, with members that are overdue. A reply has some members of
    a large group: call again from cursor on until it is '0'. A member that is there all the time comes once or
    twice]=],
  bound = '200 members a call, more or less',
  codes = 'GROUP_ID_NOT_FOUND',
}, function(keys, params)
  local g = group.open(keys)
  if not group.is_modern(g) then
    return { code.GROUP_ID_NOT_FOUND }
  end
  local members, ids, cursor = {}, group.member_page(g, params.cursor or '0')
  table.sort(ids)
  for at, target in ipairs(consumer.targets(g, ids)) do
    local member = g.members[ids[at]]
    members[at] = {
      'member_id', ids[at], 'instance_id', member.instance_id, 'rack', member.rack, 'assignor', member.assignor,
      'regex', member.awaits_regex and '' or member.regex, 'topics', member.names, 'target', target,
      'is_classic', member.classic and 1 or 0,
    }
  end
  return {
    code.NONE, 'id', g.fields.id, 'type', g.fields.type, 'generation', g.fields.generation,
    'target_epoch', g.fields.target_epoch,
    'catalog_version', g.fields.catalog_version or '', 'topics', redis.call('HGET', keys[1], 'topics') or '',
    'assignor', g.fields.assignor or '', 'members', members, 'cursor', cursor,
  }
end)

-- True if a member exists, without a look at it.
function consumer.has(g, id)
  if g.members[id] == nil then
    return redis.call('HGET', g.keys[2], id) ~= false
  end
  return g.members[id] and true
end

-- True if a target from a snapshot can be installed. Nobody installed another one since, and its members still exist,
-- unless the group changed and gets another target anyway.
function consumer.takes_target(g, made)
  if made.target_epoch ~= g.fields.target_epoch or made.generation > g.fields.generation then
    return false
  end
  if made.generation == g.fields.generation then
    for at = 1, #made.targets, 2 do
      if not consumer.has(g, made.targets[at]) then
        return false
      end
    end
  end
  return true
end

-- The epoch of a target that was made from a snapshot. Topics that changed while the target was up to date raise the
-- group epoch; nil if the group changed too, so that the target must be made anew.
-- Source: GroupMetadataManager.updateSubscriptionMetadata
function consumer.epoch_of_target(g, generation, has_other_topics)
  if generation > g.fields.target_epoch or not has_other_topics then
    return generation
  elseif generation == g.fields.generation then
    return generation + 1
  end
end

-- Install a target. No member is settled then, and members that left meanwhile get none.
function consumer.install(g, epoch, made)
  local targets = made.targets
  group.set(g, 'catalog_version', made.catalog_version)
  g.further.topics = made.topics
  if epoch == g.fields.target_epoch then
    return
  end
  group.set(g, 'generation', math.max(g.fields.generation, epoch))
  group.set(g, 'target_epoch', epoch)
  group.set(g, 'settled', 0)
  group.set(g, 'assignor', made.assignor)
  for at = 1, #targets, 2 do
    if consumer.has(g, targets[at]) then
      g.further['target:' .. targets[at]] = targets[at + 1] ~= '' and targets[at + 1] or false
    end
  end
end

korvet.define({
  name = 'group_assign', flags = { 'allow-oom' },
  description = 'install a target assignment that was made from a snapshot',
  keys = '@group',
  args = [[
    outages   generation:int of the snapshot   target_epoch:int
    catalog_version of the catalog from which the target was made
    topics a line `name topic_id partitions` for each subscribed topic   assignor
    targets*2<=20000 member_id, target, ... of the members with a new target
  ]],
  returns = '{code, generation, target_epoch}, of the group after the call',
  codes = 'GROUP_ID_NOT_FOUND, RETRY (with another snapshot)',
  source = 'GroupMetadataManager.updateTargetAssignment',
}, function(keys, made)
  local g = group.open(keys)
  group.advance(g, made.outages)
  if not group.is_modern(g) then
    group.save(g)
    return { code.GROUP_ID_NOT_FOUND, 0, 0 }
  end
  local has_other_topics = made.topics ~= (redis.call('HGET', keys[1], 'topics') or '')
  local epoch = consumer.takes_target(g, made)
    and consumer.epoch_of_target(g, made.generation, has_other_topics)
  if epoch then
    consumer.install(g, epoch, made)
  end
  consumer.save(g)
  return { epoch and code.NONE or code.RETRY, g.fields.generation, g.fields.target_epoch }
end)
