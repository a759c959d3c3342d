-- A time as ms from now; false if there is none.
function group.from_now(g, time)
  return time and math.ceil(time - g.now) or false
end

-- True if the group waits for a member: to join the rebalance, or to request its assignment.
function group.is_awaited(g, member)
  if group.is(g, 'PreparingRebalance') then
    return not group.has_joined(g, member)
  end
  return g.fields.sync_deadline ~= nil and member.synced ~= g.fields.generation
end

-- A classic member as names and values. Its metadata counts only if the group is Stable, as in Kafka's descriptions.
-- The topics that it wants to read are shown whenever they are known.
function group.described_member(g, id, deadline)
  local member, is_consumer = g.members[id], g.fields.protocol_type == 'consumer'
  local metadata, assignment = group.metadata(g, member), group.assignment(g, member)
  local wanted = metadata ~= '' and metadata or member.protocols[2] or ''
  return {
    'member_id', id, 'instance_id', member.instance_id, 'client_id', member.client_id,
    'client_host', member.client_host, 'session_timeout_ms', member.session_timeout,
    'session_ends_in_ms', group.from_now(g, deadline), 'rebalance_timeout_ms', member.rebalance_timeout,
    'topics', is_consumer and group.shown(g, group.subscription, wanted) or {},
    'partitions', is_consumer and group.shown(g, group.assigned_partitions, assignment) or {},
    'metadata', group.is(g, 'Stable') and metadata or '', 'assignment', assignment,
    'is_awaited', group.is_awaited(g, member) and 1 or 0,
  }
end

-- The ids of the members from a cursor on, which this reads, and the next cursor. A page ends by the number or by the
-- bytes of its members.
function group.member_page(g, cursor)
  local ids, is_told, bytes, unpacked = {}, {}, 0, group.codec(g).unpacked
  repeat
    local scanned = redis.call('HSCAN', g.keys[2], cursor, 'COUNT', group.STEP)
    local flat = scanned[2]
    cursor = scanned[1]
    for at = 1, #flat, 2 do
      local id = flat[at]
      if g.members[id] == nil and g.size > 0 then
        g.members[id] = unpacked(flat[at + 1])
      end
      if g.members[id] and not is_told[id] then
        ids[#ids + 1] = id
        is_told[id] = true
      end
      bytes = bytes + #flat[at + 1]
    end
  until cursor == '0' or #ids >= group.PAGE or bytes >= group.PAGE_BYTES
  return ids, cursor
end

-- The ends of some members' sessions, by their ids.
function group.session_ends(g, ids)
  local ends, scores = {}, #ids > 0 and redis.call('ZMSCORE', g.keys[3], unpack(ids)) or {}
  for at, id in ipairs(ids) do
    ends[id] = g.deadlines[id] or tonumber(scores[at] or nil)
  end
  return ends
end

-- The ids that have yet to join, at most a thousand.
function group.pending_ids(g)
  local pending = {}
  local ids = g.pending > 0 and redis.call('ZRANGE', g.keys[3], 0, group.BATCH - 1) or {}
  for _, id in ipairs(ids) do
    if g.deadlines[id] ~= false and not group.member(g, id) then
      pending[#pending + 1] = id
    end
  end
  table.sort(pending)
  return pending
end

-- Some members of either protocol, by id, and the next cursor.
function group.described_members(g, cursor)
  local described, members, ids, next_cursor = group.codec(g).described_member, {}, group.member_page(g, cursor)
  local ends = group.session_ends(g, ids)
  table.sort(ids)
  for at, id in ipairs(ids) do
    members[at] = described(g, id, ends[id])
  end
  return members, next_cursor
end

-- The committed offsets, unless there are more than a thousand.
function group.described_offsets(g)
  local key = g.keys[5]
  return redis.call('HLEN', key) <= group.BATCH and redis.call('HGETALL', key) or {}
end

-- The group's lags on some partitions, in records. A new topic of the same name has another id.
function group.lags(keys, partitions)
  local lags = {}
  for at, partition in ipairs(partitions) do
    local position = redis.call('HGET', keys[5], partition)
    local meta = redis.call('HMGET', keys[group.KEYS + at], 'topic_id', 'end')
    local offset, topic_id = string.match(position or '', '^(%d+) %-?%d+ (%S*)')
    local last = tonumber(meta[2] or nil)
    local is_its = offset and last and meta[1] == topic_id
    lags[#lags + 1] = {
      'partition', partition, 'offset', tonumber(offset) or false, 'end_offset', last or false,
      'lag', is_its and math.max(last - tonumber(offset), 0) or false,
    }
  end
  return lags
end

korvet.define({
  name = 'group_describe', flags = { 'no-writes', 'allow-oom' },
  description = 'everything about a group and its members, as it is by now',
  keys = '@group   metas* hash of partitions whose lag is wanted, if they lie on the same node',
  args = 'outages?   partitions*<=1000 `topic:partition` of each of the metas',
  returns = [=[{code}, or {0, name, value, ...} of id, locator, state, state_for_ms, generation, protocol_type,
    protocol, leader, rebalance_ends_in_ms, sync_ends_in_ms, expires_in_ms, members, pending, type, offsets, lags,
    cursor. An unknown text is '', an unknown number nil. members: [[name, value, ...], ...] of member_id, instance_id,
    client_id, client_host, session_timeout_ms, session_ends_in_ms, rebalance_timeout_ms, topics (that it wants to
    read), partitions (that it is assigned, as `topic:partition`), metadata, assignment (as the members sent them).
    pending: ids that have yet to join. offsets: [`topic:partition`, `offset leader_epoch topic_id metadata`, ...].
    lags: [[name, value, ...], ...] of partition (`topic:partition`), offset, end_offset, lag in records. type: classic,
    consumer or share. A classic group also has is_initial: a first rebalance waits for further members. Its members
    have is_awaited: they have yet to join, or to sync. Another group also has target_epoch, assignor, unsettled (why it
    is not Stable, in words). Its members have member_epoch, previous_epoch, member_state, target, owned,
    revoking (assignments as `topic_id:partition,... ...`), regex, rack, assignor, is_classic. A reply has some members
    of a large group, and group_members has the others from cursor on, which is '0' if there are none. A reply leaves
    out more than a thousand offsets, and topics and partitions of classic members beyond 64 KiB of metadata and
    assignments]=],
  codes = 'GROUP_ID_NOT_FOUND',
  source = 'ClassicGroup.asDescribedGroup, ClassicGroupMember.describe',
}, function(keys, params)
  if #keys ~= group.KEYS + #params.partitions then
    error('korvet_group_describe takes the keys of the group and the meta of each partition; the call has ' .. #keys, 0)
  end
  local g = group.open(keys)
  group.advance(g, params.outages)
  if not group.exists(g) then
    return { code.GROUP_ID_NOT_FOUND }
  elseif group.is_modern(g) then
    return group.consumer.describe(g, keys, params.partitions)
  end
  local fields = g.fields
  local members, cursor = group.described_members(g, '0')
  return {
    code.NONE, 'id', fields.id, 'locator', fields.locator, 'state', fields.state,
    'state_for_ms', g.now - fields.state_since, 'generation', fields.generation,
    'protocol_type', fields.protocol_type or '', 'protocol', fields.protocol or '', 'leader', fields.leader or '',
    'rebalance_ends_in_ms', group.from_now(g, fields.join_deadline),
    'sync_ends_in_ms', group.from_now(g, fields.sync_deadline),
    'expires_in_ms', group.is(g, 'Empty') and group.from_now(g, fields.expires_at),
    'members', members, 'pending', group.pending_ids(g), 'type', 'classic', 'offsets', group.described_offsets(g),
    'lags', group.lags(keys, params.partitions), 'cursor', cursor, 'is_initial', fields.initial and 1 or 0,
  }
end)

korvet.define({
  name = 'group_members', flags = { 'no-writes', 'allow-oom' },
  description = 'further members of a group with many of them',
  keys = '@group',
  args = 'outages   cursor of group_describe, or of the last call',
  returns = [[{code}, or {0, cursor, members}, members as in group_describe, each as it is by now. Call again until the
    cursor is '0'. A member that is there all the time comes once or twice]],
  bound = '200 members a call, more or less',
  codes = 'GROUP_ID_NOT_FOUND',
}, function(keys, params)
  local g = group.open(keys)
  group.advance(g, params.outages)
  if not group.exists(g) then
    return { code.GROUP_ID_NOT_FOUND }
  end
  local members, cursor = group.described_members(g, params.cursor)
  return { code.NONE, cursor, members }
end)

korvet.define({
  name = 'group_state', flags = { 'no-writes', 'allow-oom' },
  description = "a group's state without its members, as it is by now",
  keys = '@group',
  args = 'outages?',
  returns = [[{code}, or {0, 'state', state, 'generation', generation, 'protocol_type', protocol_type or '', 'members',
    members, 'pending', ids that have yet to join, 'type', classic, consumer or share}]],
  codes = 'GROUP_ID_NOT_FOUND',
  source = 'ClassicGroup.asListedGroup',
}, function(keys, params)
  local g = group.open(keys)
  group.advance(g, params.outages)
  if not group.exists(g) then
    return { code.GROUP_ID_NOT_FOUND }
  end
  return {
    code.NONE, 'state', g.fields.state, 'generation', g.fields.generation,
    'protocol_type', g.fields.type or g.fields.protocol_type or '', 'members', g.size,
    'pending', g.pending, 'type', g.fields.type or 'classic',
  }
end)
