-- A time as ms from now; nothing where there is none.
function group.from_now(g, time)
  return time and math.ceil(time - g.now) or false
end

-- A member as names and values. Its metadata counts only where the group is Stable, as in Kafka's descriptions; what it
-- wants to read is shown whenever it is known.
function group.described_member(g, id, deadline)
  local member, is_consumer = g.members[id], g.fields.protocol_type == 'consumer'
  local metadata, assignment = group.metadata(g, member), group.assignment(g, member)
  local wanted = metadata ~= '' and metadata or member.protocols[2] or ''
  return {
    'member_id', id, 'instance_id', member.instance_id, 'client_id', member.client_id,
    'client_host', member.client_host, 'session_timeout_ms', member.session_timeout,
    'session_ends_in_ms', group.from_now(g, deadline), 'rebalance_timeout_ms', member.rebalance_timeout,
    'topics', is_consumer and group.subscription(wanted) or {},
    'partitions', is_consumer and group.assigned_places(assignment) or {},
    'metadata', group.is(g, 'Stable') and metadata or '', 'assignment', assignment,
  }
end

-- The members, and the ids that are yet to join.
function group.described_members(g)
  local deadlines, members, pending = {}, {}, {}
  for id, deadline in pairs(value.pairs(redis.call('ZRANGE', g.keys[3], 0, -1, 'WITHSCORES'))) do
    deadlines[id] = tonumber(deadline)
  end
  for id, deadline in pairs(g.deadlines) do
    deadlines[id] = deadline
  end
  for _, id in ipairs(group.member_ids(g)) do
    members[#members + 1] = group.described_member(g, id, deadlines[id])
  end
  for id, deadline in pairs(deadlines) do
    if deadline and not group.member(g, id) then
      pending[#pending + 1] = id
    end
  end
  table.sort(pending)
  return members, pending
end

-- How far the group is behind on some partitions, in records. Another topic of the same name has another id.
function group.lags(keys, args)
  local lags = {}
  for at = 2, #args do
    local position = redis.call('HGET', keys[5], args[at])
    local meta = redis.call('HMGET', keys[at + 4], 'topic_id', 'end')
    local offset, topic_id = string.match(position or '', '^(%d+) %-?%d+ (%S*)')
    local last = tonumber(meta[2] or nil)
    local is_its = offset and last and meta[1] == topic_id
    lags[#lags + 1] = {
      'place', args[at], 'offset', tonumber(offset) or false, 'end_offset', last or false,
      'lag', is_its and math.max(last - tonumber(offset), 0) or false,
    }
  end
  return lags
end

-- group_describe: everything about a group and its members, as it is by now
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- KEYS[6..] metas  hash  of partitions whose lag is wanted, where they lie on the same node
-- ARGV[1] outages (optional): `served_until from-to ...` or ''
-- ARGV[2..] places: `topic:partition` of each of the metas
-- Returns {code}, or {0, name, value, ...} of id, locator, state, state_for_ms, generation, protocol_type, protocol,
-- leader, rebalance_ends_in_ms, sync_ends_in_ms, expires_in_ms, members, pending, type, offsets, lags. What is not
-- known is '', of numbers nil. members: [[name, value, ...], ...] of member_id, instance_id, client_id, client_host,
-- session_timeout_ms, session_ends_in_ms, rebalance_timeout_ms, topics (it wants to read), partitions (it is assigned,
-- as `topic:partition`), metadata, assignment (as the members sent them). pending: ids that are yet to join. offsets:
-- [`topic:partition`, `offset leader_epoch topic_id metadata`, ...]. lags: [[name, value, ...], ...] of place, offset,
-- end_offset, lag in records. type: classic, or consumer, which has also target_epoch, assignor, unsettled (why it is
-- not Stable, in words), and of its members member_epoch, previous_epoch, member_state, target, owned, revoking
-- (assignments as `topic_id:partition,... ...`), regex, rack, assignor, is_classic
-- Codes: GROUP_ID_NOT_FOUND
-- Source: ClassicGroup.asDescribedGroup, ClassicGroupMember.describe
function group.describe(keys, args)
  group.expect(keys, args, 'describe', 0, 1, math.max(#args - 1, 0))
  local g = group.open(keys)
  group.advance(g, args[1])
  if not group.exists(g) then
    return { code.GROUP_ID_NOT_FOUND }
  elseif group.is_consumer(g) then
    return group.consumer.describe(g, keys, args)
  end
  local fields = g.fields
  local members, pending = group.described_members(g)
  return {
    code.NONE, 'id', fields.id, 'locator', fields.locator, 'state', fields.state,
    'state_for_ms', g.now - fields.state_since, 'generation', fields.generation,
    'protocol_type', fields.protocol_type or '', 'protocol', fields.protocol or '', 'leader', fields.leader or '',
    'rebalance_ends_in_ms', group.from_now(g, fields.join_deadline),
    'sync_ends_in_ms', group.from_now(g, fields.sync_deadline),
    'expires_in_ms', group.is(g, 'Empty') and group.from_now(g, fields.expires_at),
    'members', members, 'pending', pending, 'type', 'classic', 'offsets', redis.call('HGETALL', keys[5]),
    'lags', group.lags(keys, args),
  }
end
redis.register_function{
  function_name = 'korvet_group_describe',
  callback = group.describe,
  flags = { 'no-writes', 'allow-oom' },
  description = 'everything about a group and its members, as it is by now',
}

-- group_state: a group's state without its members, as it is by now
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] outages (optional): `served_until from-to ...` or ''
-- Returns {code}, or {0, 'state', state, 'generation', generation, 'protocol_type', protocol_type or '', 'members',
-- members, 'pending', ids that are yet to join, 'type', classic or consumer}
-- Codes: GROUP_ID_NOT_FOUND
-- Source: ClassicGroup.asListedGroup
function group.state(keys, args)
  group.expect(keys, args, 'state', 0, 1)
  local g = group.open(keys)
  group.advance(g, args[1])
  if not group.exists(g) then
    return { code.GROUP_ID_NOT_FOUND }
  end
  return {
    code.NONE, 'state', g.fields.state, 'generation', g.fields.generation,
    'protocol_type', group.is_consumer(g) and 'consumer' or g.fields.protocol_type or '', 'members', g.size,
    'pending', g.pending, 'type', g.fields.type or 'classic',
  }
end
redis.register_function{
  function_name = 'korvet_group_state',
  callback = group.state,
  flags = { 'no-writes', 'allow-oom' },
  description = 'a group\'s state without its members, as it is by now',
}
