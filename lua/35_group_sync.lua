-- The assignment that a member has in the present generation, or had in the last one while none is made yet.
function group.assignment(g, member)
  return g.fields.assigned and member.assigned == g.fields.assigned and member.assignment or ''
end

-- A member asked for its assignment; nobody is given up for being late once all have.
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

-- The leader's assignments; a member without one has an empty one.
-- Source: GroupMetadataManager.setAndPropagateAssignment
function group.assign(g, args, first)
  for at = first, #args - 1, 2 do
    local member = group.member(g, args[at])
    if member then
      member.assigned, member.assignment = g.fields.generation, args[at + 1]
      group.put(g, args[at], member)
    end
  end
  group.set(g, 'assigned', g.fields.generation)
  group.move(g, 'Stable')
end

-- Why a sync is refused. Source: GroupMetadataManager.validateSyncGroup
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

-- A member's answer: parked until the leader assigns, else what it is assigned.
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
-- ARGV[2] member_id   ARGV[3] instance_id or ''   ARGV[4] generation   ARGV[5] names_protocol, 1 where the client does
-- ARGV[6] protocol_type   ARGV[7] protocol   ARGV[8..] assignments: member_id, assignment, ... from the leader
-- Returns {code} when refused, else {0, status, wait_ms, protocol_type, protocol, assignment}; status: ready | parked
-- (call group_await_sync after wait_ms or a wake-up)
-- Codes: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS
-- Source: GroupMetadataManager.classicGroupSyncToClassicGroup
function group.sync(keys, args)
  group.expect(keys, args, 'sync', 7, 2)
  local id, instance_id, generation = args[2], args[3], value.number(args[4], 'generation')
  local protocol_type = args[5] == '1' and args[6]
  local g = group.open(keys)
  group.advance(g, args[1])
  if group.is_consumer(g) then
    return group.consumer.sync(g, args)
  end
  local refusal = group.sync_refusal(g, id, instance_id, generation, protocol_type, args[7])
  if not refusal then
    group.note_sync(g, id)
    if group.is(g, 'CompletingRebalance') and g.fields.leader == id then
      group.assign(g, args, 8)
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
-- Codes: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS
function group.await_sync(keys, args)
  group.expect(keys, args, 'await_sync', 4, 2)
  local generation = value.number(args[2], 'generation')
  local g = group.open(keys)
  group.advance(g, args[1])
  if group.is_consumer(g) then
    return group.consumer.awaited(g, args, 3, false)
  end
  local refusals, answers = {}, {}
  for at = 3, #args - 1, 2 do
    refusals[at] = group.sync_refusal(g, args[at], args[at + 1], generation)
    if not refusals[at] then
      group.note_sync(g, args[at])
    end
  end
  group.save(g)
  for at = 3, #args - 1, 2 do
    answers[#answers + 1] = refusals[at] and { refusals[at] } or group.synced(g, args[at])
  end
  return answers
end
redis.register_function{
  function_name = 'korvet_group_await_sync',
  callback = group.await_sync,
  flags = { 'allow-oom' },
  description = 'ask for the answers to syncs that were parked',
}
