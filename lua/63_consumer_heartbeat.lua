-- A member's heartbeat: it joins, shows that it lives, says what it subscribes to and owns, learns its assignment, and
-- leaves.
group.USAGE.consume = {
  'outages id locator catalog_version member_id member_epoch instance_id rack assignor regex has_regex has_names owned '
    .. 'has_owned rebalance_timeout session_timeout client_id client_host version max_size retention policy '
    .. 'answers_anyway topics [name ...]',
}

-- Whether a heartbeat says anything of its member that may be new: rack, assignor, regex, names, rebalance timeout.
function consumer.says_something(args)
  return args[8] ~= '' or args[9] ~= '' or args[11] == '1' or args[12] == '1' or args[15] ~= '-1'
end

-- Names in order, each once.
function consumer.names(args, first)
  local names, seen = {}, {}
  for at = first, #args do
    if not seen[args[at]] then
      seen[args[at]] = true
      names[#names + 1] = args[at]
    end
  end
  table.sort(names)
  return names
end

function consumer.request(args)
  return {
    id = args[2], locator = args[3], catalog_version = args[4], member_id = args[5],
    epoch = value.number(args[6], 'member_epoch'), instance_id = args[7], rack = args[8], assignor = args[9],
    regex = args[11] == '1' and args[10], names = args[12] == '1' and consumer.names(args, 25),
    owned = args[14] == '1' and consumer.places(args[13]) or nil,
    rebalance_timeout = value.number(args[15], 'rebalance_timeout'),
    session_timeout = value.number(args[16], 'session_timeout'), client_id = args[17], client_host = args[18],
    version = value.number(args[19], 'version'), max_size = value.number(args[20], 'max_size'),
    retention = value.number(args[21], 'retention'), policy = args[22], answers_anyway = args[23] == '1',
    topics = args[24],
  }
end

-- Why a member's epoch is none that it may have. Who lost the answer that raised its epoch comes with the one before;
-- with 0 a member joins again, whatever it was.
-- Source: GroupMetadataManager.throwIfConsumerGroupMemberEpochIsInvalid
function consumer.epoch_refusal(member, epoch, owned)
  local comparison
  if epoch > member.epoch then
    comparison = 'greater'
  elseif epoch ~= 0 and epoch < member.epoch then
    local assigned = consumer.places(member.owned)
    local is_before = epoch == member.previous_epoch and owned and not next(consumer.without(owned, assigned))
    comparison = not is_before and 'smaller'
  end
  return comparison and code.FENCED_MEMBER_EPOCH, comparison and string.format(
    'The consumer group member has a %s member epoch (%d) than the one known by the group coordinator (%d). The member '
      .. 'must abandon all its partitions and rejoin.', comparison, epoch, member.epoch
  )
end

-- Why a static member is not the one of its instance id. Source: GroupMetadataManager.throwIfStaticMemberIsUnknown,
-- throwIfInstanceIdIsFenced
function consumer.static_refusal(g, id, instance_id)
  local holder = group.static_member(g, instance_id)
  if not holder then
    return code.UNKNOWN_MEMBER_ID, 'Instance id ' .. instance_id .. ' is unknown.'
  elseif holder ~= id then
    return code.FENCED_INSTANCE_ID,
      string.format('Static member %s with instance id %s was fenced by member %s.', id, instance_id, holder)
  end
end

-- Why a caller is not the member that it says it is.
function consumer.identity_refusal(g, id, instance_id)
  if instance_id ~= '' then
    return consumer.static_refusal(g, id, instance_id)
  elseif not group.member(g, id) then
    return code.UNKNOWN_MEMBER_ID, string.format('Member %s is not a member of group {group}.', id)
  end
end

-- Why a member's id is not that of its instance id. Who repeats its join stays what it was, static or not.
-- Source: GroupMetadataManager.throwIfInstanceIdIsUnreleased
function consumer.id_refusal(g, request)
  local id, instance_id = request.member_id, request.instance_id
  local member = instance_id ~= '' and group.member(g, id)
  if member and member.instance_id ~= instance_id then
    local used = member.instance_id == '' and 'dynamic member.'
      or 'static member with instance id ' .. member.instance_id .. '.'
    return code.INVALID_REQUEST, string.format(
      'Member %s with instance id %s cannot join the group because the member id is already used by a %s',
      id, instance_id, used
    )
  end
end

-- Why a member may not join. Source: GroupMetadataManager.throwIfInstanceIdIsUnreleased
function consumer.join_refusal(g, request)
  local id, instance_id = request.member_id, request.instance_id
  local refusal, why = consumer.id_refusal(g, request)
  if refusal then
    return refusal, why
  end
  local holder = instance_id ~= '' and group.static_member(g, instance_id)
  local other = holder and holder ~= id and group.member(g, holder)
  if other and other.epoch ~= consumer.AWAY and not other.classic then
    return code.UNRELEASED_INSTANCE_ID, string.format(
      'Static member %s with instance id %s cannot join the group because the instance id is owned by %s member.',
      id, instance_id, holder
    )
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

-- Why a heartbeat has no group; nil where there is one, or one can be made of what is there.
-- Source: GroupMetadataManager.getOrMaybeCreateConsumerGroup
function consumer.group_refusal(g, request)
  if group.is_consumer(g) then
    return nil
  elseif request.epoch ~= 0 and group.exists(g) then
    return code.GROUP_ID_NOT_FOUND, 'Group {group} is not a consumer group'
  elseif request.epoch ~= 0 then
    -- Kafka says GROUP_ID_NOT_FOUND, after which clients end for good. Redis may lose a group: its members shall join.
    return code.UNKNOWN_MEMBER_ID, 'Consumer group {group} not found.'
  elseif not group.exists(g) then
    return request.id == '' and code.UNINDEXED or nil, ''
  end
end

-- The group of a member that joins, where it is not one of the consumer protocol yet.
function consumer.enter(g, request)
  if not group.exists(g) then
    group.found(g, request.id, request.locator, request.retention)
  end
  if not group.is_consumer(g) then
    consumer.begin(g)
  end
end

-- A static member takes the place of the one that left. Source: GroupMetadataManager.replaceMember
function consumer.replace(g, old_id, id)
  local target = consumer.target(g, old_id)
  local member = consumer.with(group.member(g, old_id), { epoch = 0, previous_epoch = 0 })
  consumer.remove(g, old_id)
  consumer.own(g, id, consumer.new_member(), member)
  g.places['target:' .. id] = target ~= '' and target or false
  consumer.put(g, id, member)
end

-- The member that a heartbeat is of: it is there, takes another's place, or has just come.
function consumer.member_of(g, request)
  local id, instance_id = request.member_id, request.instance_id
  local holder = request.epoch == 0 and instance_id ~= '' and group.static_member(g, instance_id)
  local member = holder and group.member(g, holder)
  if member and (holder ~= id or member.epoch == consumer.AWAY) then
    consumer.replace(g, holder, id)
  end
  return group.member(g, id) or consumer.new_member()
end

-- What a heartbeat says of its member is noted; the group epoch is raised where it subscribes to something else.
function consumer.update(g, request)
  local id, member = request.member_id, consumer.member_of(g, request)
  local changes = {
    session_timeout = request.session_timeout, client_id = request.client_id, client_host = request.client_host,
    classic = false, regex = request.regex or nil, names = request.names or nil,
  }
  for _, name in ipairs({ 'rack', 'assignor', 'instance_id' }) do
    changes[name] = request[name] ~= '' and request[name] or nil
  end
  if request.rebalance_timeout >= 0 then
    changes.rebalance_timeout = request.rebalance_timeout
  end
  if member.classic then
    changes.revoke_by = false
  end
  local updated = consumer.with(member, changes)
  if updated.instance_id ~= '' then
    g.static[updated.instance_id] = id
    g.static_changed = true
  end
  consumer.put(g, id, updated)
  group.set(g, 'retention', request.retention)
  group.set(g, 'policy', request.policy)
  if g.fields.generation == 0 or updated.regex ~= member.regex or not group.same(updated.names, member.names) then
    consumer.raise(g)
  end
end

-- Whether the target has to be made anew before the member can be told what it is to own.
function consumer.needs_target(g, request)
  local fields = g.fields
  local is_current = fields.target_epoch == fields.generation and fields.catalog_version == request.catalog_version
  return not is_current and not (request.answers_anyway and fields.target_epoch > 0)
end

-- What a member is told. Its assignment is told where it joins, says everything of itself, or has another by now.
function consumer.answer(request, before, after)
  local is_full = request.rebalance_timeout >= 0 and (request.names or request.regex) and request.owned
  local is_told = request.epoch == 0 or is_full or before.owned ~= after.owned
  return {
    code.NONE, request.member_id, 'ready', after.epoch, is_told and 1 or 0, is_told and after.owned or '',
  }
end

-- Take a member out, or note that a static one is to come back. Source: GroupMetadataManager.consumerGroupLeave
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

-- A heartbeat of a member that joins or stays: what it is told, or why it is refused.
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
  -- A member that takes the place of a static one changes nothing else.
  if g.lacks_target and g.fields.generation == g.fields.target_epoch then
    consumer.raise(g)
  end
  local reply, id = { code.NONE, request.member_id, 'target' }, request.member_id
  if not consumer.needs_target(g, request) then
    local before = group.member(g, id)
    reply = consumer.answer(request, before, consumer.reconcile(g, id, request.owned))
  end
  consumer.renew(g, id, group.member(g, id))
  return reply
end

-- group_consume: a heartbeat of the consumer protocol: join, stay in, move towards the target, or leave
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] outages: `served_until from-to ...` or ''
-- ARGV[2] id and ARGV[3] locator of a new group, '' while it is not in the index
-- ARGV[4] catalog_version   ARGV[5] member_id   ARGV[6] member_epoch: 0 joins, -1 leaves, -2 is a static member's that
-- comes back
-- ARGV[7] instance_id, ARGV[8] rack and ARGV[9] assignor, '' where the request has none
-- ARGV[10] regex, ARGV[11] has_regex 1 where the request has one: '' is none any more
-- ARGV[12] has_names 1 where the request has names   ARGV[13] owned   ARGV[14] has_owned 1 where it says what it owns
-- ARGV[15] rebalance_timeout ms, -1 where the request has none   ARGV[16] session_timeout ms
-- ARGV[17] client_id   ARGV[18] client_host   ARGV[19] version of the heartbeat   ARGV[20] max_size
-- ARGV[21] retention ms of offsets   ARGV[22] policy: group.consumer.migration.policy
-- ARGV[23] answers_anyway 1: answer with the target as it is, where there was ever one
-- ARGV[24] topics: lines `name topic_id partitions` that an answer asked for, or ''
-- ARGV[25..] names: name, ... subscribed to
-- Returns {code, member_id, why} when refused, else {0, member_id, 'ready', member_epoch, has_assignment, assignment},
-- {0, member_id, 'target'}: bring the target up to date and call again with the same arguments, or {0, member_id,
-- 'topics', name, ...}: call again with these topics. why is Kafka's message with {group} in the place of the group's
-- id, or ''
-- Codes: LATE, UNINDEXED, GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
-- UNRELEASED_INSTANCE_ID, FENCED_MEMBER_EPOCH, INVALID_REQUEST (a member id with another instance id)
-- Source: GroupMetadataManager.consumerGroupHeartbeat
function consumer.consume(keys, args)
  group.expect(keys, args, 'consume', 24, 1)
  if not consumer.says_something(args) and consumer.beats(keys, args[4], args[5], args[6], args[7], args[16]) then
    return { code.NONE, args[5], 'ready', tonumber(args[6]), 0, '' }
  elseif group.is_late(args[1]) then
    return { code.LATE, args[5], '' }
  end
  local request = consumer.request(args)
  local reply
  local g = group.open(keys)
  group.advance(g, args[1])
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
end
redis.register_function{
  function_name = 'korvet_group_consume',
  callback = consumer.consume,
  flags = { 'allow-oom' },
  description = 'a heartbeat of the consumer protocol: join, stay in, move towards the target, or leave',
}
