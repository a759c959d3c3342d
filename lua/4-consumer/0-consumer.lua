-- A group of consumers by Kafka's consumer protocol (KIP-848). Source: ConsumerGroup, ConsumerGroupMember.
--
-- It lies in the keys of a classic group. The group hash:
-- * type is `consumer`. generation: the group epoch, which each change of members, subscriptions or topics raises.
-- * target_epoch: the group epoch of the target assignment. assignor: the assignor that made it.
-- * state, state_since. settled: the number of members that have all of their target. consumers: the number of members
--   that speak the consumer protocol (the others are classic).
-- * topics: a line `name topic_id partitions` for each subscribed topic, sorted by name, as of catalog_version, a
--   digest of the catalog's topics.
-- * policy: the migration policy of the last join. max_size: the most members of a classic group.
-- * id, locator, retention, expires_at, next_due, protocols (of the classic members) and transactions as in a classic
--   group.
-- * `topic_id:partition` -> the member that owns it: at most one, because it is one field.
-- * `target:` and a member id -> its target assignment.
-- * `settled:` and the id of a STABLE member of the consumer protocol -> `epoch session_timeout`: its usual heartbeat
--   and commit read no other data of it. In a share group the field begins with `sharing:`.
--
-- An assignment is a text everywhere, `topic_id:partition,partition topic_id:partition`: topics by id, partitions
-- ascending, '' for none.
--
-- A front-end computes the target from korvet_group_snapshot, and korvet_group_assign installs it. A member's
-- heartbeat, korvet_group_consumer_heartbeat, does everything else: it moves the member towards its target.
--
-- The sessions zset holds the time at which a member is taken out: the end of its session, or an earlier deadline to
-- give up partitions. A member that is taken out gives up all that it owns, and raises the group epoch.
local consumer = group.consumer

-- The states of a member. Source: MemberState
consumer.STATES = { 'STABLE', 'UNREVOKED_PARTITIONS', 'UNRELEASED_PARTITIONS' }
consumer.STATE_NUMBERS = { STABLE = 1, UNREVOKED_PARTITIONS = 2, UNRELEASED_PARTITIONS = 3 }
-- The epoch of a static member that left to come back. Source:
-- ConsumerGroupHeartbeatRequest.LEAVE_GROUP_STATIC_MEMBER_EPOCH
consumer.AWAY = -2
consumer.GONE = -1
consumer.HEAD = '>I4i4i4BB'
consumer.HEAD_SIZE = 14

-- The last names and their text. Members of a group mostly subscribe to the same topics.
consumer.last = {}

function consumer.packed_names(names)
  local last = consumer.last
  if names ~= last.names then
    last.names, last.text = names, cmsgpack.pack(names)
  end
  return last.text
end

function consumer.unpacked_names(text)
  local last = consumer.last
  if type(text) == 'table' then
    -- As version 0.5.0 wrote them.
    return text
  elseif text ~= last.text then
    last.names, last.text = cmsgpack.unpack(text), text
  end
  return last.names
end

-- A member as its record. The fields that need no unpacking come first: session timeout, epoch, previous epoch, state,
-- and true for a classic one.
function consumer.packed(member)
  local head = struct.pack(
    consumer.HEAD, member.session_timeout, member.epoch, member.previous_epoch, consumer.STATE_NUMBERS[member.state],
    member.classic and 1 or 0
  )
  return head .. cmsgpack.pack({
    member.rebalance_timeout, member.instance_id, member.rack, member.client_id, member.client_host, member.assignor,
    member.regex, consumer.packed_names(member.names), member.owned, member.revoking, member.revoke_by,
    member.classic, member.awaits_regex or false,
  })
end

function consumer.unpacked(record)
  local session_timeout, epoch, previous_epoch, state = struct.unpack(consumer.HEAD, record)
  local rest = cmsgpack.unpack(string.sub(record, consumer.HEAD_SIZE + 1))
  return {
    session_timeout = session_timeout, epoch = epoch, previous_epoch = previous_epoch, state = consumer.STATES[state],
    rebalance_timeout = rest[1], instance_id = rest[2], rack = rest[3], client_id = rest[4], client_host = rest[5],
    assignor = rest[6], regex = rest[7], names = consumer.unpacked_names(rest[8]), owned = rest[9],
    revoking = rest[10], revoke_by = rest[11], classic = rest[12], awaits_regex = rest[13],
  }
end

-- A new member. Its revoke_by is false if it has nothing to give up. Its classic is false if it speaks the consumer
-- protocol. Its awaits_regex is true until its regular expression counts.
function consumer.new_member()
  return {
    session_timeout = 0, epoch = 0, previous_epoch = 0, state = 'STABLE', rebalance_timeout = -1, instance_id = '',
    rack = '', client_id = '', client_host = '', assignor = '', regex = '', names = {}, owned = '', revoking = '',
    revoke_by = false, classic = false, awaits_regex = false,
  }
end

-- A copy of a member with changes. No function changes a member itself, so two members compared show the change.
function consumer.with(member, changes)
  local changed = {}
  for name, old in pairs(member) do
    changed[name] = old
  end
  for name, new in pairs(changes) do
    changed[name] = new
  end
  return changed
end

-- A text as a set of partitions `topic_id:partition`.
function consumer.partitions(text)
  local partitions = {}
  for topic_id, indexes in string.gmatch(text, '(%x+):(%S+)') do
    local prefix = topic_id .. ':'
    for index in string.gmatch(indexes, '%d+') do
      partitions[prefix .. index] = true
    end
  end
  return partitions
end

-- Lists of partitions' numbers by their topics' ids as a text.
function consumer.joined(topics)
  local ids = {}
  for topic_id in pairs(topics) do
    ids[#ids + 1] = topic_id
  end
  table.sort(ids)
  for at, topic_id in ipairs(ids) do
    table.sort(topics[topic_id])
    ids[at] = topic_id .. ':' .. table.concat(topics[topic_id], ',')
  end
  return table.concat(ids, ' ')
end

-- A set of partitions as a text.
function consumer.text(partitions)
  local topics = {}
  for partition in pairs(partitions) do
    local colon = string.find(partition, ':', 1, true)
    local topic_id = string.sub(partition, 1, colon - 1)
    local indexes = topics[topic_id] or {}
    indexes[#indexes + 1] = tonumber(string.sub(partition, colon + 1))
    topics[topic_id] = indexes
  end
  return consumer.joined(topics)
end

-- True if a member has all of its target. Source: ModernGroupMember.isReconciledTo
function consumer.is_settled(g, member)
  return member.state == 'STABLE' and member.epoch == g.fields.target_epoch
end

function consumer.regex_field(regex)
  return 'regex:' .. redis.sha1hex(regex)
end

-- The number of members that subscribe by a regular expression.
function consumer.regex_members(g, regex)
  local field = consumer.regex_field(regex)
  local count = g.further[field]
  if count == nil then
    count = redis.call('HGET', g.keys[1], field)
  end
  return tonumber(count or 0)
end

-- Count a member in (1) or out (-1).
function consumer.count(g, member, step)
  if consumer.is_settled(g, member) then
    group.set(g, 'settled', g.fields.settled + step)
  end
  if member.classic then
    group.count_protocols(g, { protocols = member.classic }, step)
  else
    group.set(g, 'consumers', g.fields.consumers + step)
  end
  if member.regex ~= '' then
    local count = consumer.regex_members(g, member.regex) + step
    g.further[consumer.regex_field(member.regex)] = count > 0 and value.integer(count)
  end
end

function consumer.settled_field(is_share, id)
  return (is_share and 'sharing:' or 'settled:') .. id
end

function consumer.put(g, id, member)
  local before = group.member(g, id)
  if before then
    consumer.count(g, before, -1)
  end
  consumer.count(g, member, 1)
  local is_plain = member.state == 'STABLE' and not member.classic
  g.further[consumer.settled_field(group.is_share(g), id)] = is_plain and member.epoch .. ' ' .. member.session_timeout
  group.put(g, id, member)
end

-- Begin the member's session anew. It may have to give up partitions earlier than its end.
function consumer.renew(g, id, member)
  g.deadlines[id] = math.min(g.now + member.session_timeout, member.revoke_by or math.huge)
end

function consumer.target(g, id)
  local field = 'target:' .. id
  if g.further[field] == nil then
    return redis.call('HGET', g.keys[1], field) or ''
  end
  return g.further[field] or ''
end

-- The owners of some partitions; nil for a partition without one. Reads the unknown ones.
function consumer.owners(g, partitions)
  local owners, wanted = {}, {}
  for partition in pairs(partitions) do
    if g.further[partition] == nil then
      wanted[#wanted + 1] = partition
    else
      owners[partition] = g.further[partition] or nil
    end
  end
  for first = 1, #wanted, group.BATCH do
    local last = math.min(first + group.BATCH - 1, #wanted)
    local found = redis.call('HMGET', g.keys[1], unpack(wanted, first, last))
    for at = first, last do
      owners[wanted[at]] = found[at - first + 1] or nil
    end
  end
  return owners
end

-- One text's partitions without the topics that have the same partitions in the other text.
function consumer.partitions_beyond(text, other)
  local known, rest = {}, {}
  for chunk in string.gmatch(other, '%S+') do
    known[chunk] = true
  end
  for chunk in string.gmatch(text, '%S+') do
    if not known[chunk] then
      rest[#rest + 1] = chunk
    end
  end
  return consumer.partitions(table.concat(rest, ' '))
end

-- Free the partitions that a member owned. Those of a share group have no owner.
function consumer.disown(g, member)
  if group.is_share(g) then
    return
  end
  for topic_id, partitions in string.gmatch(member.owned .. ' ' .. member.revoking, '(%x+):(%S+)') do
    local prefix = topic_id .. ':'
    for partition in string.gmatch(partitions, '%d+') do
      g.further[prefix .. partition] = false
    end
  end
end

-- Note that a member owns its assignment and the partitions that it has yet to give up.
function consumer.own(g, id, before, after)
  local old = before.owned .. ' ' .. before.revoking
  local new = after.owned .. ' ' .. after.revoking
  local had, has = consumer.partitions_beyond(old, new), consumer.partitions_beyond(new, old)
  for partition in pairs(had) do
    if not has[partition] then
      g.further[partition] = false
    end
  end
  for partition in pairs(has) do
    if not had[partition] then
      g.further[partition] = id
    end
  end
end

function consumer.raise(g)
  group.set(g, 'generation', g.fields.generation + 1)
end

-- Take a member out. The caller raises the group epoch. Source: GroupMetadataManager.removeMember
function consumer.remove(g, id)
  local member = group.member(g, id)
  consumer.count(g, member, -1)
  consumer.disown(g, member)
  g.further['target:' .. id] = false
  g.further[consumer.settled_field(group.is_share(g), id)] = false
  group.release_instance(g, id, member)
  g.members[id] = false
  g.written[id] = true
  g.deadlines[id] = false
  g.size = g.size - 1
end

-- Source: ConsumerGroup.maybeUpdateGroupState, ShareGroup.maybeUpdateGroupState
function consumer.state(g)
  if g.size == 0 then
    return 'Empty'
  elseif group.is_share(g) then
    return 'Stable'
  elseif g.fields.generation > g.fields.target_epoch then
    return 'Assigning'
  end
  return g.fields.settled == g.size and 'Stable' or 'Reconciling'
end

function consumer.note_state(g)
  local state = consumer.state(g)
  if state == g.fields.state then
    return
  end
  group.set(g, 'state', state)
  group.set(g, 'state_since', g.now)
  group.set(g, 'expires_at', state == 'Empty' and group.is_consumer(g) and g.now + g.fields.retention or nil)
end

-- Write all changes, offsets first.
function consumer.save(g, offsets)
  if group.is_modern(g) then
    consumer.note_state(g)
  end
  group.save(g, offsets)
end

-- Give a group without members a type. Its epoch goes on, and its offsets stay.
-- Source: GroupMetadataManager.maybeDeleteEmptyClassicGroup
function consumer.begin(g, kind)
  for _, name in ipairs({ 'protocol_type', 'protocol' }) do
    group.set(g, name, nil)
  end
  if g.pending > 0 then
    for _, id in ipairs(redis.call('ZRANGE', g.keys[3], 0, -1)) do
      g.deadlines[id] = false
    end
    g.pending = 0
  end
  group.set(g, 'type', kind)
  group.set(g, 'target_epoch', g.fields.generation)
  group.set(g, 'settled', 0)
  group.set(g, 'consumers', 0)
end

-- Make a group without members a classic one. Source: GroupMetadataManager.maybeDeleteEmptyConsumerGroup
function consumer.finish(g)
  for _, name in ipairs({
    'type', 'target_epoch', 'settled', 'consumers', 'assignor', 'catalog_version', 'policy', 'max_size',
  }) do
    group.set(g, name, nil)
  end
  g.further.topics = false
end
