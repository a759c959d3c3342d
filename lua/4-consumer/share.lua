-- Share groups (KIP-932): members share partitions, and each record goes to one of them. Source: ShareGroup,
-- ShareGroupMember, ShareGroupAssignmentBuilder.
--
-- A share group lies in the keys of a group of the consumer protocol, and its hash has the type `share`. Its members
-- are records of that protocol. `owned` is a member's assignment, which it gets at once: nobody has to give up
-- partitions, so no field names their owners. There are no static members.
--
-- The attached hash: topic -> `topic_id partitions`, for each topic in whose partitions the group has state, or is
-- about to. Because of that state a group without members does not expire. It stays until it is deleted.
local share_group = group.share

-- The code and message if a member may not have its epoch. A member that lost the answer with a new epoch comes with
-- the one before. Source: GroupMetadataManager.throwIfShareGroupMemberEpochIsInvalid
function share_group.epoch_refusal(member, epoch)
  if epoch > member.epoch then
    return code.FENCED_MEMBER_EPOCH, string.format(
      'The share group member has a greater member epoch (%d) than the one known by the group coordinator (%d). The '
        .. 'member must abandon all its partitions and rejoin.', epoch, member.epoch
    )
  elseif epoch ~= 0 and epoch < member.epoch and epoch ~= member.previous_epoch then
    return code.FENCED_MEMBER_EPOCH, string.format(
      'The share group member has a smaller member epoch (%d) than the one known by the group coordinator (%d), and it '
        .. 'does not match the previous member epoch (%d). The member must abandon all its partitions and rejoin.',
      epoch, member.epoch, member.previous_epoch
    )
  end
end

-- The code and message if a heartbeat is refused; nil also if it makes its group.
-- Source: GroupMetadataManager.getOrMaybeCreateShareGroup, throwIfShareGroupIsFull
function share_group.refusal(g, request)
  local id, epoch = request.member_id, request.member_epoch
  if not group.exists(g) and epoch ~= 0 then
    -- Kafka's GROUP_ID_NOT_FOUND would end clients for good. Redis may lose a group, and then its members must join
    -- again.
    return code.UNKNOWN_MEMBER_ID, 'Share group {group} not found.'
  elseif not group.exists(g) then
    return request.id == '' and code.UNINDEXED or nil, ''
  elseif not group.is_share(g) then
    return code.GROUP_ID_NOT_FOUND, 'Group {group} is not a share group.'
  end
  local member = group.member(g, id)
  if not member and g.size >= request.max_size then
    return code.GROUP_MAX_SIZE_REACHED,
      string.format('The share group has reached its maximum capacity of %d members.', request.max_size)
  elseif not member then
    return epoch ~= 0 and code.UNKNOWN_MEMBER_ID or nil, 'Member ' .. id .. ' is not a member of group {group}.'
  end
  return share_group.epoch_refusal(member, epoch)
end

-- Make a share group. It is Empty.
function share_group.found(g, request)
  group.found(g, request.id, request.locator, 0)
  consumer.begin(g, 'share')
  group.set(g, 'expires_at', nil)
end

-- Note a heartbeat's statements of its member, and raise the group epoch if its subscription changed.
function share_group.update(g, request)
  local id = request.member_id
  local before = group.member(g, id) or consumer.new_member()
  local member = consumer.with(before, {
    session_timeout = request.session_timeout, client_id = request.client_id, client_host = request.client_host,
    rack = request.rack ~= '' and request.rack or nil, names = request.names,
  })
  consumer.put(g, id, member)
  if not group.same(member.names, before.names) then
    consumer.raise(g)
  end
end

-- Bring a member to its target at once, without topics to which it no longer subscribes. Returns true if it has
-- another assignment now.
function share_group.arrive(g, id)
  local member, text = group.member(g, id), consumer.target(g, id)
  local ids = consumer.subscribed_ids(g, member)
  if ids then
    text = consumer.text(consumer.subscribed_partitions(consumer.partitions(text), ids))
  end
  local epoch = g.fields.target_epoch
  if member.epoch ~= epoch or member.owned ~= text then
    local previous_epoch = member.epoch ~= epoch and member.epoch or nil
    consumer.put(g, id, consumer.with(member, { epoch = epoch, previous_epoch = previous_epoch, owned = text }))
  end
  return member.owned ~= text
end

-- The reply to the heartbeat of a member that joins or stays.
function share_group.stay(g, request)
  local id = request.member_id
  local refusal, why = share_group.refusal(g, request)
  if refusal then
    return { refusal, id, why }
  elseif not group.exists(g) then
    share_group.found(g, request)
  end
  share_group.update(g, request)
  group.renew(g, id, request.session_timeout)
  if consumer.needs_target(g, request) then
    return { code.NONE, id, 'target' }
  end
  local is_changed = share_group.arrive(g, id)
  local is_told = is_changed or request.names or request.member_epoch == 0
  local member = group.member(g, id)
  return { code.NONE, id, 'ready', member.epoch, is_told and 1 or 0, is_told and member.owned or '' }
end

-- The reply to the heartbeat of a member that leaves. Source: GroupMetadataManager.shareGroupLeave
function share_group.leave(g, request)
  local id = request.member_id
  if not group.is_share(g) then
    local why = group.exists(g) and 'Group {group} is not a share group.' or 'Group {group} not found.'
    return { code.GROUP_ID_NOT_FOUND, id, why }
  elseif not group.member(g, id) then
    return { code.UNKNOWN_MEMBER_ID, id, 'Member ' .. id .. ' is not a member of group {group}.' }
  end
  consumer.fence(g, { id })
  return { code.NONE, id, 'ready', request.member_epoch, 0, '' }
end

korvet.define({
  name = 'group_share_heartbeat', flags = { 'allow-oom' },
  description = 'a heartbeat of a member of a share group: join, stay in, or leave',
  keys = '@group',
  args = [[
    outages   id of a new group, '' while it is not in the index   locator   catalog_version   member_id
    member_epoch:int 0 joins, -1 leaves   rack or ''   has_names 1 if the request has names   session_timeout:int ms
    client_id   client_host   max_size:int
    answers_anyway 1: answer with the target as it is, if there was ever one   names*<=10000 name, ... subscribed to
  ]],
  returns = [[{code, member_id, why} if it refuses, else {0, member_id, 'ready', member_epoch, has_assignment,
    assignment}, or {0, member_id, 'target'}: bring the target up to date and call again with the same arguments. why is
    Kafka's message with {group} instead of the group's id, or '']],
  codes = [[LATE, UNINDEXED, GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH]],
  source = 'GroupMetadataManager.shareGroupHeartbeat',
}, function(keys, request)
  if group.is_late(request.outages) then
    return { code.LATE, request.member_id, '' }
  end
  request.names = request.has_names == '1' and consumer.names(request.names) or nil
  request.answers_anyway = request.answers_anyway == '1'
  local g = group.open(keys)
  group.advance(g, request.outages)
  local reply = request.member_epoch < 0 and share_group.leave(g, request) or share_group.stay(g, request)
  consumer.save(g)
  return reply
end)

korvet.define({
  name = 'group_share_attach', flags = { 'allow-oom' },
  description = 'note the topics in which a share group is about to have share partitions',
  keys = '@group   attached hash topic -> `topic_id partitions`',
  args = [[
    outages   id of a new group, '' while it is not in the index   locator
    mode:begin|move begin: for its members; move: for an administrator, who makes the group if there is none
    topics*2<=2000 topic, `topic_id partitions`, ...
  ]],
  returns = '{code, id of the group}; may be repeated',
  codes = 'LATE, UNINDEXED, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (to move)',
  source = 'GroupMetadataManager.addInitializingTopicsRecords, alterShareGroupOffsets',
}, function(keys, params)
  if group.is_late(params.outages) then
    return { code.LATE, '' }
  end
  local g, moves = group.open_beside(keys), params.mode == 'move'
  group.advance(g, params.outages)
  local outcome = code.NONE
  if group.exists(g) and not group.is_share(g) or not group.exists(g) and not moves then
    outcome = code.GROUP_ID_NOT_FOUND
  elseif not group.exists(g) and params.id == '' then
    outcome = code.UNINDEXED
  elseif not group.exists(g) then
    share_group.found(g, params)
  elseif moves and not group.is(g, 'Empty') then
    outcome = code.NON_EMPTY_GROUP
  end
  consumer.save(g) -- first write
  if outcome == code.NONE then
    group.in_batches('HSET', keys[6], params.topics)
  end
  return { outcome, g.fields.id or '' }
end)

korvet.define({
  name = 'group_share_topics', flags = { 'no-writes', 'allow-oom' },
  description = 'the topics in which a share group has share partitions',
  keys = '@group   attached hash topic -> `topic_id partitions`',
  args = 'outages   cursor 0 at first   topic? the only one to return',
  returns = [[{code, id of the group, state, cursor, [topic, `topic_id partitions`, ...]}; call again with the cursor
    until it is '0'. A topic that is there all the time comes once or twice]],
  bound = '1000 topics a call, more or less',
  codes = 'GROUP_ID_NOT_FOUND',
  source = 'GroupMetadataManager.initializedShareGroupPartitions',
}, function(keys, params)
  local g = group.open_beside(keys)
  group.advance(g, params.outages)
  if not group.is_share(g) then
    return { code.GROUP_ID_NOT_FOUND, '', '', '0', {} }
  end
  local scanned = { '0', { params.topic, params.topic and redis.call('HGET', keys[6], params.topic) or '' } }
  if not params.topic then
    scanned = redis.call('HSCAN', keys[6], params.cursor, 'COUNT', group.BATCH)
  end
  return { code.NONE, g.fields.id, g.fields.state, scanned[1], scanned[2] }
end)
