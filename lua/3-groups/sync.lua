-- A member's assignment in the present generation, or in the last one until the leader assigns again.
function group.assignment(g, member)
  return g.fields.assigned and member.assigned == g.fields.assigned and member.assignment or ''
end

-- A member asks for its assignment. The deadline ends when all members have asked.
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

-- group_sync: store the leader's assignments, or hand a member its own
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] outages: `served_until from-to ...` or ''
-- ARGV[2] member_id   ARGV[3] instance_id or ''   ARGV[4] generation   ARGV[5] names_protocol, 1 if the client does
-- ARGV[6] protocol_type   ARGV[7] protocol   ARGV[8..] assignments: member_id, assignment, ... from the leader
-- Returns {code} if it refuses, else {0, status, wait_ms, protocol_type, protocol, assignment}; status: ready | parked
-- (call group_await_sync after wait_ms or a wake-up)
-- Bound: 20000 assignments; two arguments for each
-- Codes: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS
-- Source: GroupMetadataManager.classicGroupSyncToClassicGroup
function group.sync(keys, args)
  local request = group.arguments(keys, args,
    'group_sync: outages member_id instance_id generation:int names_protocol protocol_type protocol '
      .. 'assignments*2<=20000')
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
end
redis.register_function{
  function_name = 'korvet_group_sync',
  callback = group.sync,
  flags = { 'allow-oom' },
  description = 'store the leader\'s assignments, or hand a member its own',
}

-- group_await_sync: ask for the answers to syncs that were parked
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] outages: `served_until from-to ...` or ''   ARGV[2] generation that they synced in
-- ARGV[3..] members: member_id, instance_id or '', ...
-- Returns [the same as group_sync, ...], one for each
-- Bound: 400 members; two arguments for each
-- Codes: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS
function group.await_sync(keys, args)
  local asked = group.arguments(keys, args, 'group_await_sync: outages generation:int members+2<=400')
  local g, members = group.open(keys), asked.members
  group.advance(g, asked.outages)
  if group.is_consumer(g) then
    return group.consumer.awaited(g, members, false)
  end
  local refusals, answers = {}, {}
  for at = 1, #members, 2 do
    refusals[at] = group.sync_refusal(g, members[at], members[at + 1], asked.generation)
    if not refusals[at] then
      group.note_sync(g, members[at])
    end
  end
  group.save(g)
  for at = 1, #members, 2 do
    answers[#answers + 1] = refusals[at] and { refusals[at] } or group.synced(g, members[at])
  end
  return answers
end
redis.register_function{
  function_name = 'korvet_group_await_sync',
  callback = group.await_sync,
  flags = { 'allow-oom' },
  description = 'ask for the answers to syncs that were parked',
}
