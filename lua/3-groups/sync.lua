-- A member's assignment in the present generation, or in the last one until the leader assigns again.
function group.assignment(g, member)
  return g.fields.assigned and member.assigned == g.fields.assigned and member.assignment or ''
end

-- A member requests its assignment. The deadline ends when all members have.
function group.note_sync(g, id)
  local member = group.member(g, id)
  group.renew(g, id, member.session_timeout)
  if member.synced ~= g.fields.generation then
    member.synced = g.fields.generation
    group.put(g, id, member)
    group.set(g, 'synced', g.fields.synced + 1)
  end
  if g.fields.synced == g.size then
    group.set(g, 'sync_deadline', nil)
  end
end

-- Store some of the leader's assignments, member_id, assignment, ..., but none for an id that is no member.
function group.assign_some(g, assignments, first, last)
  local ids = {}
  for at = first, last, 2 do
    ids[#ids + 1] = assignments[at]
  end
  local records = redis.call('HMGET', g.keys[2], unpack(ids))
  for at, id in ipairs(ids) do
    local member, assignment = g.members[id], assignments[first + 2 * at - 1]
    if member then
      member.assigned, member.assignment = g.fields.generation, assignment
      group.put(g, id, member)
    elseif records[at] and member == nil then
      g.records[id] = group.assigned_record(records[at], g.fields.generation, assignment)
    end
  end
end

-- Store the leader's assignments. A member without one has an empty one.
-- Source: GroupMetadataManager.setAndPropagateAssignment
function group.assign(g, assignments)
  for first = 1, #assignments, group.BATCH do
    group.assign_some(g, assignments, first, math.min(first + group.BATCH - 1, #assignments))
  end
  group.set(g, 'assigned', g.fields.generation)
  group.move(g, 'Stable')
end

-- The code if a sync is refused, else nil. Source: GroupMetadataManager.validateSyncGroup
function group.sync_refusal(g, id, instance_id, generation, protocol_type, protocol)
  local refusal = group.refusal(g, id, instance_id)
  if refusal then
    return refusal
  elseif generation ~= g.fields.generation then
    return code.ILLEGAL_GENERATION
  elseif protocol_type and (protocol_type ~= g.fields.protocol_type
    or protocol ~= (g.fields.protocol or protocol)) then
    return code.INCONSISTENT_GROUP_PROTOCOL
  elseif group.is(g, 'PreparingRebalance') then
    return code.REBALANCE_IN_PROGRESS
  end
end

-- A member's answer: parked until the leader assigns, then its assignment.
function group.synced(g, id)
  if group.is(g, 'CompletingRebalance') then
    return { code.NONE, 'parked', group.wait_ms(g), '', '', '' }
  end
  return {
    code.NONE, 'ready', 0, g.fields.protocol_type, g.fields.protocol, group.assignment(g, group.member(g, id)),
  }
end

korvet.define({
  name = 'group_sync', flags = { 'allow-oom' },
  description = "store the leader's assignments, or hand a member its own",
  keys = '@group',
  args = [[
    outages   member_id   instance_id or ''   generation:int   names_protocol 1 if the client does   protocol_type
    protocol   assignments*2<=20000 member_id, assignment, ... from the leader
  ]],
  returns = [[{code} if it refuses, else {0, status, wait_ms, protocol_type, protocol, assignment}; status: ready |
    parked (call group_await_sync after wait_ms or a wake-up)]],
  codes = [[UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL,
    REBALANCE_IN_PROGRESS]],
  source = 'GroupMetadataManager.classicGroupSyncToClassicGroup',
}, function(keys, request)
  local id, protocol_type = request.member_id, request.names_protocol == '1' and request.protocol_type
  local g = group.open(keys)
  group.advance(g, request.outages)
  if group.is_consumer(g) then
    return group.consumer.sync(g, request)
  end
  local refusal =
    group.sync_refusal(g, id, request.instance_id, request.generation, protocol_type, request.protocol)
  if not refusal then
    group.note_sync(g, id)
    if group.is(g, 'CompletingRebalance') and g.fields.leader == id then
      group.assign(g, request.assignments)
    end
  end
  group.save(g)
  return refusal and { refusal } or group.synced(g, id)
end)

korvet.define({
  name = 'group_await_sync', flags = { 'allow-oom' },
  description = 'ask for the answers to syncs that were parked',
  keys = '@group',
  args = "outages   generation:int that they synced in   members+2<=400 member_id, instance_id or '', ...",
  returns = '[the same as group_sync, ...], one for each',
  codes = 'UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS',
}, function(keys, params)
  local g, members = group.open(keys), params.members
  group.advance(g, params.outages)
  if group.is_consumer(g) then
    return group.consumer.awaited(g, members, false)
  end
  local refusals, answers = {}, {}
  for at = 1, #members, 2 do
    refusals[at] = group.sync_refusal(g, members[at], members[at + 1], params.generation)
    if not refusals[at] then
      group.note_sync(g, members[at])
    end
  end
  group.save(g)
  for at = 1, #members, 2 do
    answers[#answers + 1] = refusals[at] and { refusals[at] } or group.synced(g, members[at])
  end
  return answers
end)
