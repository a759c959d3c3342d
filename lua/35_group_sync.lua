-- The assignment that a member has in the present generation, or had in the last one while none is made yet.
function group.assignment(g, member)
  return g.fields.assigned and member.assigned == g.fields.assigned and member.assignment or ''
end

-- A member asked for its assignment; nobody is given up for being late once all have.
function group.note_sync(g, id, member)
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
  elseif protocol_type and (protocol_type ~= g.fields.protocol_type or protocol ~= g.fields.protocol) then
    return code.INCONSISTENT_GROUP_PROTOCOL
  elseif group.is(g, 'PreparingRebalance') then
    return code.REBALANCE_IN_PROGRESS
  end
end

-- group_sync: store the leader's assignments, or hand a member its own
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] member_id   ARGV[2] instance_id or ''   ARGV[3] generation   ARGV[4] names_protocol, 1 where the client does
-- ARGV[5] protocol_type   ARGV[6] protocol   ARGV[7..] assignments: member_id, assignment, ... from the leader
-- Returns {code} when refused, else {0, status, wait_ms, protocol_type, protocol, assignment}; status: ready | parked
-- (call again, without assignments, after wait_ms or a wake-up)
-- Codes: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS
-- Source: GroupMetadataManager.classicGroupSyncToClassicGroup
function group.sync(keys, args)
  local id, instance_id, generation = args[1], args[2], value.number(args[3], 'generation')
  local protocol_type = args[4] == '1' and args[5]
  local g = group.open(keys)
  group.advance(g, id)
  local refusal = group.sync_refusal(g, id, instance_id, generation, protocol_type, args[6])
  local member = not refusal and group.member(g, id)
  if member then
    group.renew(g, id, member.session_timeout)
    group.note_sync(g, id, member)
    if group.is(g, 'CompletingRebalance') and g.fields.leader == id then
      group.assign(g, args, 7)
    end
  end
  group.save(g)
  if refusal then
    return { refusal }
  elseif group.is(g, 'CompletingRebalance') then
    return { code.NONE, 'parked', group.wait_ms(g), '', '', '' }
  end
  return {
    code.NONE, 'ready', 0, g.fields.protocol_type, g.fields.protocol, group.assignment(g, member),
  }
end
redis.register_function{
  function_name = 'korvet_group_sync',
  callback = group.sync,
  flags = { 'allow-oom' },
  description = 'store the leader\'s assignments, or hand a member its own',
}
