-- A member's heartbeat: it joins, stays or leaves, names its subscription and its partitions, and learns its
-- assignment.

-- True if a heartbeat may carry news of its member: rack, assignor, regex, names, rebalance timeout.
function consumer.says_something(params)
  return params.rack ~= '' or params.assignor ~= '' or params.has_regex == '1' or params.has_names == '1'
    or params.rebalance_timeout ~= -1
end

-- Names in order, each once.
function consumer.names(named)
  local names, seen = {}, {}
  for _, name in ipairs(named) do
    if not seen[name] then
      seen[name] = true
      names[#names + 1] = name
    end
  end
  table.sort(names)
  return names
end

-- A heartbeat's arguments as a request: regex, names and owned are nil if it says nothing of them.
function consumer.request(params)
  params.epoch = params.member_epoch
  params.regex = params.has_regex == '1' and params.regex or nil
  params.names = params.has_names == '1' and consumer.names(params.names) or nil
  params.owned = params.has_owned == '1' and consumer.partitions(params.owned) or nil
  params.answers_anyway = params.answers_anyway == '1'
  return params
end

-- The code and message if a member may not have its epoch. A member that lost the answer with a new epoch comes with
-- the one before. With 0 any member joins again.
-- Source: GroupMetadataManager.throwIfConsumerGroupMemberEpochIsInvalid
function consumer.epoch_refusal(member, epoch, owned)
  local comparison
  if epoch > member.epoch then
    comparison = 'greater'
  elseif epoch ~= 0 and epoch < member.epoch then
    local assigned = consumer.partitions(member.owned)
    local is_before = epoch == member.previous_epoch and owned and not next(consumer.without(owned, assigned))
    comparison = not is_before and 'smaller'
  end
  return comparison and code.FENCED_MEMBER_EPOCH, comparison and string.format(
    'The consumer group member has a %s member epoch (%d) than the one known by the group coordinator (%d). The member '
      .. 'must abandon all its partitions and rejoin.', comparison, epoch, member.epoch
  )
end

-- The code and message if another member, or none, has the instance id. Source:
-- GroupMetadataManager.throwIfStaticMemberIsUnknown, throwIfInstanceIdIsFenced
function consumer.static_refusal(g, id, instance_id)
  local holder = group.static_member(g, instance_id)
  if not holder then
    return code.UNKNOWN_MEMBER_ID, 'Instance id ' .. instance_id .. ' is unknown.'
  elseif holder ~= id then
    return code.FENCED_INSTANCE_ID,
      'Static member ' .. id .. ' with instance id ' .. instance_id .. ' was fenced by member ' .. holder .. '.'
  end
end

-- The code and message if a caller is not the member that it claims to be.
function consumer.identity_refusal(g, id, instance_id)
  if instance_id ~= '' then
    return consumer.static_refusal(g, id, instance_id)
  elseif not group.member(g, id) then
    return code.UNKNOWN_MEMBER_ID, 'Member ' .. id .. ' is not a member of group {group}.'
  end
end

-- The code and message if a member id is used with another instance id, or without one.
-- Source: GroupMetadataManager.throwIfInstanceIdIsUnreleased
function consumer.id_refusal(g, request)
  local id, instance_id = request.member_id, request.instance_id
  local member = instance_id ~= '' and group.member(g, id)
  if member and member.instance_id ~= instance_id then
    local used = member.instance_id == '' and 'dynamic member.'
      or 'static member with instance id ' .. member.instance_id .. '.'
    return code.INVALID_REQUEST, 'Member ' .. id .. ' with instance id ' .. instance_id
      .. ' cannot join the group because the member id is already used by a ' .. used
  end
end

-- The code and message if a member may not join. Source: GroupMetadataManager.throwIfInstanceIdIsUnreleased
function consumer.join_refusal(g, request)
  local id, instance_id = request.member_id, request.instance_id
  local refusal, why = consumer.id_refusal(g, request)
  if refusal then
    return refusal, why
  end
  local holder = instance_id ~= '' and group.static_member(g, instance_id)
  local other = holder and holder ~= id and group.member(g, holder)
  if other and other.epoch ~= consumer.AWAY and not other.classic then
    return code.UNRELEASED_INSTANCE_ID, 'Static member ' .. id .. ' with instance id ' .. instance_id
      .. ' cannot join the group because the instance id is owned by ' .. holder .. ' member.'
  end
end

-- Kafka's order of the refusals of a heartbeat to a group of the consumer protocol.
-- Source: GroupMetadataManager.consumerGroupHeartbeat
function consumer.refusal(g, request)
  local id = request.member_id
  if g.size >= request.max_size and not group.member(g, id) then
    return code.GROUP_MAX_SIZE_REACHED,
      string.format('The consumer group has reached its maximum capacity of %d members.', request.max_size)
  elseif request.epoch == 0 then
    return consumer.join_refusal(g, request)
  end
  local refusal, why = consumer.identity_refusal(g, id, request.instance_id)
  if refusal then
    return refusal, why
  end
  return consumer.epoch_refusal(group.member(g, id), request.epoch, request.owned)
end

-- True if a member may join a classic group that does not know it. The group became classic when all of its members of
-- the consumer protocol expired. Kafka's GROUP_ID_NOT_FOUND would end their clients for good. A member that lost its
-- instance id to another one may not come back.
function consumer.may_come_back(g, request)
  local holder = request.instance_id ~= '' and group.static_member(g, request.instance_id)
  return not holder and (group.is(g, 'Empty') or not consumer.upgrade_refusal(g, request))
end

-- The code and message if a heartbeat has no group; nil if there is one, or one can be made.
-- Source: GroupMetadataManager.getOrMaybeCreateConsumerGroup
function consumer.group_refusal(g, request)
  local why = 'Group {group} is not a consumer group.'
  if group.is_consumer(g) then
    return nil
  elseif group.is_share(g) then
    return code.GROUP_ID_NOT_FOUND, why
  elseif request.epoch ~= 0 and group.exists(g) then
    return consumer.may_come_back(g, request) and code.UNKNOWN_MEMBER_ID or code.GROUP_ID_NOT_FOUND, why
  elseif request.epoch ~= 0 then
    -- Kafka's GROUP_ID_NOT_FOUND ends clients for good. Redis may lose a group, and then its members must join again.
    return code.UNKNOWN_MEMBER_ID, 'Consumer group {group} not found.'
  elseif not group.exists(g) then
    return request.id == '' and code.UNINDEXED or nil, ''
  end
end

-- Make the group of a member that joins one of the consumer protocol.
function consumer.enter(g, request)
  if not group.exists(g) then
    group.found(g, request.id, request.locator, request.retention)
  end
  if not group.is_consumer(g) then
    consumer.begin(g, 'consumer')
  end
end

-- A static member replaces the one that left. Source: GroupMetadataManager.replaceMember
function consumer.replace(g, old_id, id)
  local target = consumer.target(g, old_id)
  local member = consumer.with(group.member(g, old_id), { epoch = 0, previous_epoch = 0 })
  consumer.remove(g, old_id)
  consumer.own(g, id, consumer.new_member(), member)
  g.further['target:' .. id] = target ~= '' and target or false
  consumer.put(g, id, member)
end

-- The member of a heartbeat: a known one, one that replaces another one, or a new one.
function consumer.member_of(g, request)
  local id, instance_id = request.member_id, request.instance_id
  local holder = request.epoch == 0 and instance_id ~= '' and group.static_member(g, instance_id)
  local member = holder and group.member(g, holder)
  if member and (holder ~= id or member.epoch == consumer.AWAY) then
    consumer.replace(g, holder, id)
  end
  return group.member(g, id) or consumer.new_member()
end

-- True if no member has this regular expression yet. As in Kafka, it counts from its member's next heartbeat on:
-- clients get the topics that they name first. Source: GroupMetadataManager.maybeUpdateRegularExpressions
function consumer.is_new_regex(g, regex)
  return regex ~= '' and consumer.regex_members(g, regex) == 0
end

-- Have a member's regular expression count from now on, after one answer without it.
function consumer.resolve_regex(g, id)
  local member = group.member(g, id)
  if member.awaits_regex then
    consumer.put(g, id, consumer.with(member, { awaits_regex = false }))
    consumer.raise(g)
  end
end

-- Note a heartbeat's statements of its member, and raise the group epoch if its subscription changed.
function consumer.update(g, request)
  local id, member = request.member_id, consumer.member_of(g, request)
  local changes = {
    session_timeout = request.session_timeout, client_id = request.client_id, client_host = request.client_host,
    classic = false, regex = request.regex, names = request.names,
  }
  if request.regex and request.regex ~= member.regex then
    changes.awaits_regex = consumer.is_new_regex(g, request.regex)
  end
  for _, name in ipairs({ 'rack', 'assignor', 'instance_id' }) do
    changes[name] = request[name] ~= '' and request[name] or nil
  end
  if request.rebalance_timeout >= 0 then
    changes.rebalance_timeout = request.rebalance_timeout
  end
  if member.classic then
    changes.revoke_by = false
  end
  local updated, is_first = consumer.with(member, changes), g.fields.generation == 0
  if updated.instance_id ~= '' then
    g.static[updated.instance_id] = id
    g.static_changed = true
  end
  consumer.put(g, id, updated)
  group.set(g, 'retention', request.retention)
  group.set(g, 'policy', request.policy)
  local has_other_regex = updated.regex ~= member.regex and not updated.awaits_regex
  if is_first or has_other_regex or not group.same(updated.names, member.names) then
    consumer.raise(g)
  end
end

-- True if a new target has to be made before the member can learn its assignment.
function consumer.needs_target(g, request)
  local fields = g.fields
  local is_current = fields.target_epoch == fields.generation and fields.catalog_version == request.catalog_version
  return not is_current and not (request.answers_anyway and fields.target_epoch > 0)
end

-- A member's answer. It has the assignment if the member joins, says everything of itself, or has a new assignment.
function consumer.answer(request, before, after)
  local is_full = request.rebalance_timeout >= 0 and (request.names or request.regex) and request.owned
  local is_told = request.epoch == 0 or is_full or before.owned ~= after.owned
  return {
    code.NONE, request.member_id, 'ready', after.epoch, is_told and 1 or 0, is_told and after.owned or '',
  }
end

-- Take a member out, or note that a static one left to come back. Source: GroupMetadataManager.consumerGroupLeave
function consumer.leave(g, request)
  local id = request.member_id
  if not group.is_consumer(g) then
    return code.GROUP_ID_NOT_FOUND, group.exists(g) and 'Group {group} is not a consumer group.'
      or 'Group {group} not found.'
  end
  local refusal, why = consumer.identity_refusal(g, id, request.instance_id)
  if refusal then
    return refusal, why
  elseif request.instance_id ~= '' and request.epoch == consumer.AWAY then
    local member = group.member(g, id)
    local away = consumer.with(member, { epoch = consumer.AWAY, revoking = '', revoke_by = false })
    consumer.own(g, id, member, away)
    consumer.put(g, id, away)
    consumer.renew(g, id, away)
  else
    consumer.fence(g, { id })
  end
end

-- The reply to the heartbeat of a member that joins or stays.
function consumer.stay(g, request)
  local refusal, why = consumer.group_refusal(g, request)
  if not refusal and group.exists(g) and not group.is_consumer(g) and not group.is(g, 'Empty') then
    local reply = consumer.upgrade(g, request)
    if reply then
      return reply
    end
  end
  if not refusal then
    refusal, why = consumer.refusal(g, request)
  end
  if refusal then
    return { refusal, request.member_id, why or '' }
  end
  consumer.enter(g, request)
  consumer.update(g, request)
  -- A member that replaces a static one changes nothing else.
  if g.lacks_target and g.fields.generation == g.fields.target_epoch then
    consumer.raise(g)
  end
  local reply, id = { code.NONE, request.member_id, 'target' }, request.member_id
  if not consumer.needs_target(g, request) then
    local before = group.member(g, id)
    reply = consumer.answer(request, before, consumer.reconcile(g, id, request.owned))
    consumer.resolve_regex(g, id)
  end
  consumer.renew(g, id, group.member(g, id))
  return reply
end

korvet.define({
  name = 'group_consumer_heartbeat', was = { 'group_consume', '0.7' }, flags = { 'allow-oom' },
  description = 'a heartbeat of the consumer protocol: join, stay in, move towards the target, or leave',
  keys = '@group',
  args = [[
    outages   id of a new group, '' while it is not in the index   locator   catalog_version   member_id
    member_epoch:int 0 joins, -1 leaves, -2 leaves for a time   instance_id or ''   rack or ''   assignor or ''   regex
    has_regex 1 if the request has one: '' ends the former one   has_names 1 if the request has names   owned
    has_owned 1 if the request has owned partitions   rebalance_timeout:int ms, -1 if the request has none
    session_timeout:int ms   client_id   client_host   version:int of the heartbeat   max_size:int
    retention:int ms of offsets   policy group.consumer.migration.policy
    answers_anyway 1: answer with the target as it is, if there was ever one
    topics lines `name topic_id partitions` that an answer asked for, or ''   names*<=10000 name, ... subscribed to
  ]],
  returns = [[{code, member_id, why} if it refuses, else {0, member_id, 'ready', member_epoch, has_assignment,
    assignment}, {0, member_id, 'target'}: bring the target up to date and call again with the same arguments, or {0,
    member_id, 'topics', name, ...}: call again with these topics. why is Kafka's message with {group} instead of the
    group's id, or '']],
  codes = [[LATE, UNINDEXED, GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
    UNRELEASED_INSTANCE_ID, FENCED_MEMBER_EPOCH, INVALID_REQUEST (a member id with another instance id)]],
  source = 'GroupMetadataManager.consumerGroupHeartbeat',
}, function(keys, params)
  local id, epoch = params.member_id, params.member_epoch
  if not consumer.says_something(params) and consumer.beats(
    keys, params.catalog_version, id, value.integer(epoch), params.instance_id, value.integer(params.session_timeout)
  ) then
    return { code.NONE, id, 'ready', epoch, 0, '' }
  elseif group.is_late(params.outages) then
    return { code.LATE, id, '' }
  end
  local request = consumer.request(params)
  local reply
  local g = group.open(keys)
  group.advance(g, request.outages)
  if request.epoch < 0 then
    local refusal, why = consumer.leave(g, request)
    reply = refusal and { refusal, request.member_id, why } or {
      code.NONE, request.member_id, 'ready', request.epoch, 0, '',
    }
  else
    reply = consumer.stay(g, request)
  end
  consumer.save(g)
  return reply
end)
