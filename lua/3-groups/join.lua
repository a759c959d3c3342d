-- A member's answer: parked while the rebalance goes on, else the present generation.
function group.joined(g, id, skips_assignment)
  local fields = g.fields
  if group.is(g, 'PreparingRebalance') then
    return { code.NONE, id, 'parked', group.wait_ms(g), -1, '', '', '', 0, {} }
  end
  local leader, leads, skips = fields.leader, fields.leader == id, 0
  if g.kept_leader then
    -- A leader that came back must not assign anew. If its client cannot skip that, the answer names its former id.
    leader, leads = skips_assignment and leader or g.kept_leader, leads and skips_assignment
    skips = leads and 1 or 0
  end
  return {
    code.NONE, id, 'ready', 0, fields.generation, fields.protocol_type, fields.protocol, leader, skips,
    leads and group.for_leader(g) or {},
  }
end

-- The members for the leader: member id, instance id, metadata, ... Source: currentClassicGroupMembers
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

-- True if protocols are the same, in the same order and with the same metadata.
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

-- The bytes of all members' metadata. This sums them up once for a group from a library that did not count them.
function group.all_metadata_bytes(g)
  if not group.exists(g) or g.size == 0 then
    group.set(g, 'metadata_bytes', 0)
  elseif not g.fields.metadata_bytes then
    local bytes = 0
    for _, id in ipairs(group.member_ids(g)) do
      local member = g.members[id]
      bytes = bytes + group.metadata_bytes(member.protocols or member.classic or {})
    end
    group.set(g, 'metadata_bytes', bytes)
  end
  return g.fields.metadata_bytes
end

-- True if there is room for a member's metadata beside that of all others. A member always has room for no more than
-- before. In Kafka, metadata that makes the group's record too large fails every SyncGroup with UNKNOWN_SERVER_ERROR.
-- Source: GroupMetadataManager.appendGroupMetadataErrorToResponseError
function group.has_room(g, id, request)
  local holder = request.instance_id ~= '' and group.exists(g) and group.static_member(g, request.instance_id)
  local member = group.exists(g) and group.member(g, holder or id)
  local before = member and group.metadata_bytes(member.protocols or member.classic or {}) or 0
  local bytes, all = group.metadata_bytes(request.protocols), group.all_metadata_bytes(g)
  return bytes <= before or all - before + bytes <= group.METADATA_BYTES
end

-- True if the group has room for a member. Source: GroupMetadataManager.acceptJoiningMember
function group.accepts(g, id, request)
  local max_size = request.max_size
  if not group.exists(g) or group.is(g, 'Empty') then
    return true
  end
  local member = group.member(g, id)
  if group.is(g, 'PreparingRebalance') then
    return member and group.has_joined(g, member) or g.fields.joined < max_size
  end
  return member or g.size < max_size
end

-- Note the protocols and timeouts that a member's join names.
function group.update(g, id, member, request)
  group.count_protocols(g, member, -1)
  member.protocols = request.protocols
  member.session_timeout, member.rebalance_timeout = request.session_timeout, request.rebalance_timeout
  group.count_protocols(g, member, 1)
  group.bound(g, member)
  group.put(g, id, member)
  group.renew(g, id, member.session_timeout)
end

-- Keep the group's longest rebalance timeout and shortest session timeout.
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

-- A static member came back with a new member id, which replaces the old one.
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
  return group.chosen_protocol(g, group.tally(g, g.fields.leader)) ~= g.fields.protocol
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
  if group.is_share(g) then
    return code.INCONSISTENT_GROUP_PROTOCOL, ''
  elseif id ~= '' and not group.exists(g) then
    return code.UNKNOWN_MEMBER_ID, id
  elseif not group.has_room(g, id, request) then
    -- A member stays as it was: without it the others would have to rebalance.
    return code.GROUP_MAX_SIZE_REACHED, ''
  elseif not group.accepts(g, id, request) then
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

-- The protocols of a join, each once with its first metadata. A protocol that counted twice would never have as many
-- supporters as the group has members, and the group would have no protocol. Kafka 4.1.2's group hangs.
function group.distinct(named)
  local protocols, is_named = {}, {}
  for at = 1, #named, 2 do
    if not is_named[named[at]] then
      is_named[named[at]] = true
      protocols[#protocols + 1] = named[at]
      protocols[#protocols + 1] = named[at + 1]
    end
  end
  return protocols
end

korvet.define({
  name = 'group_join', flags = { 'allow-oom' },
  description = 'join a group, or join it again',
  keys = '@group',
  args = [[
    outages   id of a new group, '' while it is not in the index   locator   member_id or ''
    new_member_id used if member_id is ''   instance_id or ''   client_id   client_host   session_timeout:int ms
    rebalance_timeout:int ms   protocol_type   version:int of the JoinGroup   min_session_timeout:int
    max_session_timeout:int   max_size:int   initial_delay:int ms   retention:int ms of offsets
    protocols*2<=200 name, metadata, ... the preferred one first
  ]],
  returns = [[{code, member_id} if it refuses; {REBALANCE_IN_PROGRESS, member_id, 'target'} in a group of the consumer
    protocol: bring its target up to date and call again with the same arguments; else {0, member_id, status, wait_ms,
    generation, protocol_type, protocol, leader, skip_assignment, [member_id, instance_id, metadata, ...] for the
    leader}; status: ready | parked (call group_await after wait_ms or a wake-up)]],
  bound = [[The metadata of all members has 1 MiB at most; a member that would bring more is refused
    (GROUP_MAX_SIZE_REACHED)]],
  codes = [[LATE, UNINDEXED, INVALID_SESSION_TIMEOUT, UNKNOWN_MEMBER_ID, GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL, MEMBER_ID_REQUIRED, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS]],
  source = 'GroupMetadataManager.classicGroupJoinToClassicGroup, KIP-345, KIP-394, KIP-814',
}, function(keys, request)
  request.requires_id, request.skips_assignment = request.version >= 4, request.version >= 9
  request.protocols = group.distinct(request.protocols)
  local timeout = request.session_timeout
  if timeout < request.min_session_timeout or timeout > request.max_session_timeout then
    return { code.INVALID_SESSION_TIMEOUT, request.member_id }
  end
  if group.is_late(request.outages) then
    return { code.LATE, '' }
  end
  local g = group.open(keys)
  group.advance(g, request.outages)
  if group.is_consumer(g) and not group.is(g, 'Empty') then
    return group.consumer.join(g, request)
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
end)

-- Hold the session of a member with a parked join, and have it take part in the present rebalance.
-- Returns the code of a refusal, else nil.
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

korvet.define({
  name = 'group_await', flags = { 'allow-oom' },
  description = 'ask for the answers to joins that were parked',
  keys = '@group',
  args = "outages   members+2<=400 member_id, instance_id or '', ...",
  returns = '[the same as group_join, ...], one for each',
  codes = [[UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS (the group speaks the consumer protocol by
    now)]],
}, function(keys, params)
  local g, members = group.open(keys), params.members
  group.advance(g, params.outages)
  if group.is_consumer(g) then
    return group.consumer.awaited(g, members, true)
  end
  local refusals, answers = {}, {}
  for at = 1, #members, 2 do
    refusals[at] = group.stay(g, members[at], members[at + 1])
  end
  group.settle(g)
  group.save(g)
  for at = 1, #members, 2 do
    local refusal, id = refusals[at], members[at]
    -- A member that was taken out hears so without its id. Source:
    -- GroupMetadataManager.removeMemberAndUpdateClassicGroup
    answers[#answers + 1] = refusal and { refusal, refusal == code.UNKNOWN_MEMBER_ID and '' or id }
      or group.joined(g, id)
  end
  return answers
end)
