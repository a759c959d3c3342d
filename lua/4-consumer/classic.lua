-- Classic members of a group of the consumer protocol. Their generation is their member epoch, and the broker is their
-- leader: a join moves a member towards its target, and a sync returns its assignment. Heartbeats make it join again
-- for a further step. The classic functions call these with a group that is read and advanced.
--
-- A member is taken out at its revoke_by unless it joins, or syncs, before.

-- True if the group is full for a member; a static one replaces its former self.
-- Source: GroupMetadataManager.throwIfConsumerGroupIsFull
function consumer.is_full(g, id, request)
  local holder = request.instance_id ~= '' and group.static_member(g, request.instance_id)
  return g.size >= request.max_size and not group.member(g, id) and not holder
end

-- True if all classic members support one of the protocols. Source: ConsumerGroup.supportsClassicProtocols
function consumer.supports(g, request)
  local supporters, classics = group.supporters(g), g.size - g.fields.consumers
  for at = 1, request.protocol_type == 'consumer' and #request.protocols or 0, 2 do
    if (supporters[request.protocols[at]] or 0) == classics then
      return true
    end
  end
  return false
end

-- The topics that a member may name.
consumer.MOST_NAMES = 10000

-- The code if a member cannot join by the classic protocol, else nil. Source:
-- GroupMetadataManager.classicGroupJoinToConsumerGroup
function consumer.classic_refusal(g, id, request)
  local is_new, instance_id = request.member_id == '', request.instance_id
  if consumer.is_full(g, id, request) or not group.has_room(g, id, request) then
    return code.GROUP_MAX_SIZE_REACHED
  elseif not consumer.supports(g, request) then
    return code.INCONSISTENT_GROUP_PROTOCOL
  elseif is_new and instance_id == '' and request.requires_id then
    return code.MEMBER_ID_REQUIRED
  end
  local refusal = not is_new and instance_id ~= '' and consumer.static_refusal(g, id, instance_id)
  local metadata = request.protocols[2]
  local is_too_much = (group.count_at(metadata, 3) or 0) > consumer.MOST_NAMES
  return refusal or (is_too_much or not consumer.subscription(metadata)) and code.INCONSISTENT_GROUP_PROTOCOL or nil
end

-- The member that joins, as it was before. It replaces the former member of its instance id.
function consumer.classic_member(g, id, request)
  local holder = request.instance_id ~= '' and group.static_member(g, request.instance_id)
  if holder and holder ~= id then
    consumer.replace(g, holder, id)
  end
  return group.member(g, id) or consumer.new_member()
end

-- Note a JoinGroup's statements of its member, and raise the group epoch if its subscription changed.
function consumer.note_join(g, id, request, read)
  local before = consumer.classic_member(g, id, request)
  local after = consumer.with(before, {
    session_timeout = request.session_timeout, rebalance_timeout = request.rebalance_timeout,
    client_id = request.client_id, client_host = request.client_host, regex = '', awaits_regex = false,
    names = read.topics, classic = request.protocols,
  })
  after.rack = read.rack ~= '' and read.rack or after.rack
  if request.instance_id ~= '' then
    after.instance_id = request.instance_id
    g.static[request.instance_id] = id
    g.static_changed = true
  end
  local is_new = not group.member(g, id)
  consumer.put(g, id, after)
  group.set(g, 'retention', request.retention)
  group.set(g, 'max_size', request.max_size)
  if is_new or before.regex ~= '' or not group.same(after.names, before.names) then
    consumer.raise(g)
  end
end

-- Set the time at which a member is taken out unless it joins or syncs before.
function consumer.expect_by(g, id, revoke_by)
  local member = group.member(g, id)
  if member.revoke_by ~= revoke_by then
    member = consumer.with(member, { revoke_by = revoke_by })
    consumer.put(g, id, member)
  end
  consumer.renew(g, id, member)
end

-- Give a member its rebalance timeout to join again, from the first request on.
-- Source: GroupMetadataManager.scheduleConsumerGroupJoinTimeoutIfAbsent
function consumer.expect_join(g, id)
  local member = group.member(g, id)
  consumer.expect_by(g, id, member.revoke_by or g.now + member.rebalance_timeout)
end

-- Give a member that joined its rebalance timeout to sync. Source:
-- GroupMetadataManager.scheduleConsumerGroupSyncTimeout
function consumer.expect_sync(g, id)
  consumer.expect_by(g, id, g.now + group.member(g, id).rebalance_timeout)
end

function consumer.join_answer(id, epoch, protocol)
  return { code.NONE, id, 'ready', 0, epoch, 'consumer', protocol, '', 0, {} }
end

-- Make the group a classic one by a join. If all members had their targets, it goes on as it was, and keeps the version
-- of the catalog, for no client leads it. Else the member takes part in a rebalance.
function consumer.join_downgraded(g, id, request, is_settled)
  local catalog_version = g.fields.catalog_version
  consumer.downgrade(g)
  group.set(g, 'catalog_version', catalog_version)
  if not is_settled then
    group.take_part(g, id, group.member(g, id))
    group.settle(g)
    return group.joined(g, id, request.skips_assignment)
  end
  return consumer.join_answer(id, g.fields.generation, g.fields.protocol)
end

function consumer.join(g, request)
  local id = request.member_id ~= '' and request.member_id or request.new_member_id
  local refusal = consumer.classic_refusal(g, id, request)
  if refusal then
    consumer.save(g)
    return { refusal, refusal == code.MEMBER_ID_REQUIRED and id or '' }
  end
  local read = consumer.subscription(request.protocols[2])
  local consumers = g.fields.consumers
  consumer.note_join(g, id, request, read)
  local is_current = g.fields.target_epoch == g.fields.generation
  local reply
  local downgrades = consumers > 0 and g.fields.consumers == 0 and consumer.may_downgrade(g, g.size)
  if is_current then
    -- It owns nothing of topics without subscribers: clients give these up before they join.
    local topics = consumer.topics_by_name(redis.call('HGET', g.keys[1], 'topics') or '')
    consumer.reconcile(g, id, consumer.partitions_of(read.owned, topics))
  end
  if downgrades then
    reply = consumer.join_downgraded(g, id, request, is_current and g.fields.settled == g.size)
  else
    consumer.expect_sync(g, id)
    reply = is_current and consumer.join_answer(id, group.member(g, id).epoch, request.protocols[1])
      or { code.REBALANCE_IN_PROGRESS, id, 'target' }
  end
  consumer.save(g)
  return reply
end

-- Tell members that waited for a classic group's rebalance, with a join or a sync, to join this group. The answer to a
-- join has the member's id, unless it is no member. Source: GroupMetadataManager.convertToConsumerGroup
function consumer.awaited(g, members, is_join)
  local answers = {}
  for at = 1, #members, 2 do
    local refusal = group.refusal(g, members[at], members[at + 1])
    local id = refusal == code.UNKNOWN_MEMBER_ID and '' or members[at]
    answers[#answers + 1] = { refusal or code.REBALANCE_IN_PROGRESS, is_join and id or nil }
  end
  consumer.save(g)
  return answers
end

-- The code if a caller is not the classic member that it claims to be, in its generation; else nil.
-- Source: GroupMetadataManager.validateConsumerGroupMember, throwIfMemberDoesNotUseClassicProtocol,
-- throwIfGenerationIdUnmatched
function consumer.generation_refusal(g, id, instance_id, generation)
  local refusal = group.refusal(g, id, instance_id)
  if refusal then
    return refusal
  end
  local member = group.member(g, id)
  if not member.classic then
    return code.UNKNOWN_MEMBER_ID
  end
  return member.epoch ~= generation and code.ILLEGAL_GENERATION or nil
end

-- The code if a sync is refused, else nil. Source: GroupMetadataManager.classicGroupSyncToConsumerGroup
function consumer.sync_refusal(g, request)
  local id = request.member_id
  local refusal = consumer.generation_refusal(g, id, request.instance_id, request.generation)
  if refusal then
    return refusal
  end
  local member = group.member(g, id)
  local is_other = request.protocol_type ~= 'consumer' or request.protocol ~= member.classic[1]
  if request.names_protocol == '1' and is_other then
    return code.INCONSISTENT_GROUP_PROTOCOL
  elseif g.fields.generation > member.epoch and member.state ~= 'UNREVOKED_PARTITIONS' then
    consumer.expect_join(g, id)
    return code.REBALANCE_IN_PROGRESS
  end
end

function consumer.sync(g, request)
  local id, refusal = request.member_id, consumer.sync_refusal(g, request)
  local reply = { refusal }
  if not refusal then
    consumer.expect_by(g, id, false)
    local member = group.member(g, id)
    local named, version = consumer.named(member.owned, consumer.topic_names(g)), consumer.version(member.classic[2])
    reply = { code.NONE, 'ready', 0, 'consumer', member.classic[1], consumer.encoded(named, version) }
  end
  consumer.save(g)
  return reply
end

-- True if a member waits for a partition that another one has yet to give up.
-- Source: ConsumerGroup.waitingOnUnreleasedPartition
function consumer.waits_for_others(g, id, member)
  local missing = consumer.without(consumer.partitions(consumer.target(g, id)), consumer.partitions(member.owned))
  return next(consumer.owners(g, missing)) ~= nil
end

-- True if a classic member must join again. Source: GroupMetadataManager.classicGroupHeartbeatToConsumerGroup
function consumer.is_to_join(g, id, member)
  return member.epoch < g.fields.generation or member.state == 'UNREVOKED_PARTITIONS'
    or member.state == 'UNRELEASED_PARTITIONS' and not consumer.waits_for_others(g, id, member)
end

function consumer.heartbeat(g, id, instance_id, generation, catalog_version)
  local outcome = consumer.generation_refusal(g, id, instance_id, generation)
  if not outcome then
    local member = group.member(g, id)
    consumer.renew(g, id, member)
    outcome = code.NONE
    if consumer.is_to_join(g, id, member) then
      consumer.expect_join(g, id)
      outcome = code.REBALANCE_IN_PROGRESS
    elseif catalog_version and catalog_version ~= g.fields.catalog_version then
      -- Kafka waits until a member joins, and classic members alone may never do so.
      outcome = code.RETRY
    end
  end
  consumer.save(g)
  return outcome
end

-- The member that a LeaveGroup names; an administrator names only the instance id. nil and a code if there is none.
-- Source: GroupMetadataManager.classicGroupLeaveToConsumerGroup
function consumer.named_member(g, id, instance_id)
  local holder = instance_id ~= '' and group.static_member(g, instance_id)
  if holder and (id == '' or id == holder) then
    return holder
  elseif holder then
    return nil, code.FENCED_INSTANCE_ID
  elseif instance_id == '' and group.member(g, id) then
    return id
  end
  return nil, code.UNKNOWN_MEMBER_ID
end

function consumer.leave_classic(g, members)
  local codes, gone, is_gone = {}, {}, {}
  for at = 1, #members, 2 do
    local id, why = consumer.named_member(g, members[at], members[at + 1])
    if id and not is_gone[id] then
      is_gone[id] = true
      gone[#gone + 1] = id
    end
    codes[#codes + 1] = why or code.NONE
  end
  consumer.fence(g, gone)
  consumer.save(g)
  return codes
end
