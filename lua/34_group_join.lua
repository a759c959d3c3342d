-- A member's answer: parked while the rebalance goes on, else the present generation.
function group.joined(g, id, skips_assignment)
  local fields = g.fields
  if group.is(g, 'PreparingRebalance') then
    return { code.NONE, id, 'parked', group.wait_ms(g), -1, '', '', '', 0, {} }
  end
  local leader, leads, skips = fields.leader, fields.leader == id, 0
  if g.kept_leader then
    -- A leader that came back is not to assign anew. Who cannot be told so is told of the leader that it was.
    leader, leads = skips_assignment and leader or g.kept_leader, leads and skips_assignment
    skips = leads and 1 or 0
  end
  return {
    code.NONE, id, 'ready', 0, fields.generation, fields.protocol_type, fields.protocol, leader, skips,
    leads and group.for_leader(g) or {},
  }
end

-- What the leader is told of the members: member id, instance id, metadata, ... Source: currentClassicGroupMembers
function group.for_leader(g)
  local told = {}
  for _, id in ipairs(group.member_ids(g)) do
    local member = g.members[id]
    told[#told + 1] = id
    told[#told + 1] = member.instance_id
    told[#told + 1] = group.metadata(g, member)
  end
  return told
end

-- A member's metadata for the group's protocol.
function group.metadata(g, member)
  for at = 1, #member.protocols, 2 do
    if member.protocols[at] == g.fields.protocol then
      return member.protocols[at + 1]
    end
  end
  return ''
end

-- Whether protocols are the same, in the same order and with the same metadata.
function group.same(some, others)
  if #some ~= #others then
    return false
  end
  for at, one in ipairs(some) do
    if one ~= others[at] then
      return false
    end
  end
  return true
end

-- Whether the group has room for a member. Source: GroupMetadataManager.acceptJoiningMember
function group.accepts(g, id, max_size)
  if not group.exists(g) or group.is(g, 'Empty') then
    return true
  end
  local member = group.member(g, id)
  if group.is(g, 'PreparingRebalance') then
    return member and group.has_joined(g, member) or g.fields.joined < max_size
  end
  return member or g.size < max_size
end

-- Note what the member asks for now.
function group.update(g, id, member, request)
  group.count_protocols(g, member, -1)
  member.protocols = request.protocols
  member.session_timeout, member.rebalance_timeout = request.session_timeout, request.rebalance_timeout
  group.count_protocols(g, member, 1)
  group.bound(g, member)
  group.put(g, id, member)
  group.renew(g, id, member.session_timeout)
end

-- Keep the group's timeouts, the longest and the shortest of its members'.
function group.bound(g, member)
  group.set(g, 'rebalance_timeout', math.max(g.fields.rebalance_timeout or 0, member.rebalance_timeout))
  group.set(g, 'session_timeout', math.min(g.fields.session_timeout or math.huge, member.session_timeout))
end

-- Source: GroupMetadataManager.addMemberThenRebalanceOrCompleteJoin
function group.add(g, id, request)
  if group.is_pending(g, id) then
    g.pending = g.pending - 1
  end
  local member = {
    session_timeout = request.session_timeout, rebalance_timeout = request.rebalance_timeout,
    instance_id = request.instance_id, client_id = request.client_id, client_host = request.client_host,
    protocols = request.protocols, attempt = 0, synced = 0, assigned = 0, assignment = '',
  }
  if g.size == 0 then
    group.set(g, 'protocol_type', request.protocol_type)
  end
  if request.instance_id ~= '' then
    g.static[request.instance_id] = id
    g.static_changed = true
  end
  if not g.fields.leader then
    group.set(g, 'leader', id)
  end
  group.set(g, 'retention', request.retention)
  group.note_new_member(g)
  group.put(g, id, member)
  group.count_protocols(g, member, 1)
  group.bound(g, member)
  group.renew(g, id, member.session_timeout)
  group.take_part(g, id, member, request.initial_delay)
end

-- A static member came back with a new member id, which takes the old one's place.
-- Source: GroupMetadataManager.updateStaticMemberThenRebalanceOrCompleteJoin, ClassicGroup.replaceStaticMember
function group.replace(g, old_id, request)
  local id, member, leader = request.new_member_id, group.member(g, old_id), g.fields.leader
  local had_joined = group.has_joined(g, member)
  local changes_vote = not group.same(group.names(member.protocols), group.names(request.protocols))
  local synced = member.synced
  group.remove(g, old_id)
  if synced == g.fields.generation and g.fields.synced then
    group.set(g, 'synced', g.fields.synced + 1)
  end
  if leader == old_id then
    group.set(g, 'leader', id)
  end
  g.static[member.instance_id] = id
  g.static_changed = true
  member.protocols, member.attempt = request.protocols, had_joined and 0 or member.attempt
  member.session_timeout, member.rebalance_timeout = request.session_timeout, request.rebalance_timeout
  group.put(g, id, member)
  group.count_protocols(g, member, 1)
  group.bound(g, member)
  group.renew(g, id, member.session_timeout)
  if group.is(g, 'Stable') and not (changes_vote and group.would_change_protocol(g)) then
    g.kept_leader = leader
  else
    group.take_part(g, id, member)
  end
end

function group.names(protocols)
  local names = {}
  for at = 1, #protocols, 2 do
    names[#names + 1] = protocols[at]
  end
  return names
end

function group.would_change_protocol(g)
  return group.chosen_protocol(g, group.member_ids(g), g.fields.leader) ~= g.fields.protocol
end

-- A member joins without a member id. Source: GroupMetadataManager.classicGroupJoinNewMember
function group.join_new(g, request)
  local id = request.new_member_id
  if not group.exists(g) then
    if request.id == '' then
      return code.UNINDEXED, ''
    end
    group.found(g, request.id, request.locator, request.retention)
  end
  local old_id = request.instance_id ~= '' and group.static_member(g, request.instance_id)
  if old_id then
    group.replace(g, old_id, request)
    return code.NONE, id
  elseif request.instance_id == '' and request.requires_id then
    g.pending = g.pending + 1
    group.renew(g, id, request.session_timeout)
    return code.MEMBER_ID_REQUIRED, id
  end
  group.add(g, id, request)
  return code.NONE, id
end

-- A member joins again, or with the id that it was given. Source: GroupMetadataManager.classicGroupJoinExistingMember
function group.join_again(g, request)
  local id = request.member_id
  if request.instance_id == '' and group.is_pending(g, id) then
    group.add(g, id, request)
    return code.NONE, id
  end
  local refusal = group.refusal(g, id, request.instance_id)
  if refusal then
    return refusal, id
  end
  local member = group.member(g, id)
  local is_unchanged = group.same(member.protocols, request.protocols)
  local answers = group.is(g, 'CompletingRebalance') or group.is(g, 'Stable') and g.fields.leader ~= id
  if answers and is_unchanged then
    group.renew(g, id, member.session_timeout)
  else
    group.update(g, id, member, request)
    group.take_part(g, id, member)
  end
  return code.NONE, id
end

-- Kafka's order of the refusals of a JoinGroup. Source: GroupMetadataManager.classicGroupJoinToClassicGroup
function group.admit(g, request)
  local id = request.member_id
  if id ~= '' and not group.exists(g) then
    return code.UNKNOWN_MEMBER_ID, id
  elseif not group.accepts(g, id, request.max_size) then
    if group.member(g, id) then
      group.remove(g, id)
    elseif group.is_pending(g, id) then
      group.remove_pending(g, id)
    end
    return code.GROUP_MAX_SIZE_REACHED, ''
  elseif not group.supports(g, request.protocol_type, request.protocols) then
    return code.INCONSISTENT_GROUP_PROTOCOL, id
  elseif id == '' then
    return group.join_new(g, request)
  end
  return group.join_again(g, request)
end

-- group_join: join a group, or join it again
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] outages: `served_until from-to ...` or ''
-- ARGV[2] id and ARGV[3] locator of a new group, '' while it is not in the index
-- ARGV[4] member_id or ''   ARGV[5] new_member_id, used where that is ''   ARGV[6] instance_id or ''
-- ARGV[7] client_id   ARGV[8] client_host   ARGV[9] session_timeout ms   ARGV[10] rebalance_timeout ms
-- ARGV[11] protocol_type   ARGV[12] version of the JoinGroup   ARGV[13] min_session_timeout
-- ARGV[14] max_session_timeout   ARGV[15] max_size   ARGV[16] initial_delay ms   ARGV[17] retention ms of offsets
-- ARGV[18..] protocols: name, metadata, ... the preferred one first
-- Returns {code, member_id} when refused, {REBALANCE_IN_PROGRESS, member_id, 'target'}: bring the target of the group,
-- which speaks the consumer protocol, up to date and call again with the same arguments, else {0, member_id, status,
-- wait_ms, generation, protocol_type, protocol, leader, skip_assignment, [member_id, instance_id, metadata, ...] for
-- the leader}; status: ready | parked (call group_await after wait_ms or a wake-up)
-- Codes: LATE, UNINDEXED, INVALID_SESSION_TIMEOUT, UNKNOWN_MEMBER_ID, GROUP_MAX_SIZE_REACHED,
-- INCONSISTENT_GROUP_PROTOCOL, MEMBER_ID_REQUIRED, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS
-- Source: GroupMetadataManager.classicGroupJoinToClassicGroup, KIP-345, KIP-394, KIP-814
function group.join(keys, args)
  group.expect(keys, args, 'join', 17, 2)
  local request = {
    id = args[2], locator = args[3], member_id = args[4], new_member_id = args[5], instance_id = args[6],
    client_id = args[7], client_host = args[8], session_timeout = value.number(args[9], 'session_timeout'),
    rebalance_timeout = value.number(args[10], 'rebalance_timeout'), protocol_type = args[11],
    requires_id = value.number(args[12], 'version') >= 4, skips_assignment = value.number(args[12], 'version') >= 9,
    max_size = value.number(args[15], 'max_size'), initial_delay = value.number(args[16], 'initial_delay'),
    retention = value.number(args[17], 'retention'), protocols = {},
  }
  for at = 18, #args do
    request.protocols[at - 17] = args[at]
  end
  if request.session_timeout < value.number(args[13], 'min_session_timeout')
    or request.session_timeout > value.number(args[14], 'max_session_timeout') then
    return { code.INVALID_SESSION_TIMEOUT, request.member_id }
  end
  if request.member_id == '' and request.instance_id ~= '' and group.is_late(args[1]) then
    return { code.LATE, '' }
  end
  local g = group.open(keys)
  group.advance(g, args[1])
  if group.is_consumer(g) and not group.is(g, 'Empty') then
    -- What a late join says of owned partitions could acknowledge a revocation that came after it.
    return group.is_late(args[1]) and { code.LATE, '' } or group.consumer.join(g, request)
  elseif group.is_consumer(g) then
    group.consumer.finish(g)
  end
  local outcome, id = group.admit(g, request)
  group.settle(g)
  group.save(g)
  if outcome ~= code.NONE then
    return { outcome, id }
  end
  return group.joined(g, id, request.skips_assignment)
end
redis.register_function{
  function_name = 'korvet_group_join',
  callback = group.join,
  flags = { 'allow-oom' },
  description = 'join a group, or join it again',
}

-- A member whose join is parked is still there, and takes part in the round that goes on by now.
-- Returns why it is refused, else nil.
function group.stay(g, id, instance_id)
  local refusal = group.refusal(g, id, instance_id)
  if not refusal then
    local member = group.member(g, id)
    group.renew(g, id, member.session_timeout)
    if group.is(g, 'PreparingRebalance') and not group.has_joined(g, member) then
      group.take_part(g, id, member)
    end
  end
  return refusal
end

-- group_await: ask for the answers to joins that were parked
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] outages: `served_until from-to ...` or ''
-- ARGV[2..] members: member_id, instance_id or '', ...
-- Returns [the same as group_join, ...], one for each
-- Codes: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS (the group speaks the consumer protocol by now)
function group.await(keys, args)
  group.expect(keys, args, 'await', 3, 2)
  local g = group.open(keys)
  group.advance(g, args[1])
  if group.is_consumer(g) then
    return group.consumer.awaited(g, args, 2, true)
  end
  local refusals, answers = {}, {}
  for at = 2, #args - 1, 2 do
    refusals[at] = group.stay(g, args[at], args[at + 1])
  end
  group.settle(g)
  group.save(g)
  for at = 2, #args - 1, 2 do
    local refusal, id = refusals[at], args[at]
    -- Who was taken out is told so without its id. Source: GroupMetadataManager.removeMemberAndUpdateClassicGroup
    answers[#answers + 1] = refusal and { refusal, refusal == code.UNKNOWN_MEMBER_ID and '' or id }
      or group.joined(g, id)
  end
  return answers
end
redis.register_function{
  function_name = 'korvet_group_await',
  callback = group.await,
  flags = { 'allow-oom' },
  description = 'ask for the answers to joins that were parked',
}
