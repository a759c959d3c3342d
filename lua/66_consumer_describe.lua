-- What is shown of a group of the consumer protocol.

-- The names of topics by their ids.
function consumer.topic_names(g)
  local names = {}
  for name, topic_id in string.gmatch(redis.call('HGET', g.keys[1], 'topics') or '', '(%S+) (%x+) %d+') do
    names[topic_id] = name
  end
  return names
end

-- An assignment as places `topic:partition` by the topics' names, of those that are known.
function consumer.named_places(text, names)
  local places = {}
  for topic_id, partitions in string.gmatch(text, '(%x+):(%S+)') do
    for partition in string.gmatch(names[topic_id] and partitions or '', '%d+') do
      places[#places + 1] = names[topic_id] .. ':' .. partition
    end
  end
  return places
end

-- A member as names and values.
function consumer.described_member(g, id, deadline, names)
  local member = g.members[id]
  return {
    'member_id', id, 'instance_id', member.instance_id, 'client_id', member.client_id,
    'client_host', member.client_host, 'session_timeout_ms', member.session_timeout,
    'session_ends_in_ms', group.from_now(g, deadline), 'rebalance_timeout_ms', member.rebalance_timeout,
    'topics', member.names, 'partitions', consumer.named_places(member.owned, names), 'metadata', '', 'assignment', '',
    'member_epoch', member.epoch, 'previous_epoch', member.previous_epoch, 'member_state', member.state,
    'target', consumer.target(g, id), 'owned', member.owned, 'revoking', member.revoking, 'regex', member.regex,
    'rack', member.rack, 'assignor', member.assignor, 'is_classic', member.classic and 1 or 0,
  }
end

function consumer.described_members(g)
  local deadlines = value.pairs(redis.call('ZRANGE', g.keys[3], 0, -1, 'WITHSCORES'))
  local names, members, ids = consumer.topic_names(g), {}, group.member_ids(g)
  table.sort(ids)
  for at, id in ipairs(ids) do
    members[at] = consumer.described_member(g, id, g.deadlines[id] or tonumber(deadlines[id]), names)
  end
  return members
end

-- Why the group is not Stable, in words; '' where it is, or is Empty.
function consumer.unsettled(g)
  local fields = g.fields
  if group.is(g, 'Assigning') then
    return string.format(
      'the target assignment is of epoch %d and the group is at epoch %d', fields.target_epoch, fields.generation
    )
  elseif group.is(g, 'Reconciling') then
    return string.format('%d of %d members do not have all of their target yet', g.size - fields.settled, g.size)
  end
  return ''
end

-- The reply of korvet_group_describe.
function consumer.describe(g, keys, args)
  local fields = g.fields
  return {
    code.NONE, 'id', fields.id, 'locator', fields.locator, 'state', fields.state,
    'state_for_ms', g.now - fields.state_since, 'generation', fields.generation, 'protocol_type', 'consumer',
    'protocol', fields.assignor or '', 'leader', '', 'rebalance_ends_in_ms', false, 'sync_ends_in_ms', false,
    'expires_in_ms', group.is(g, 'Empty') and group.from_now(g, fields.expires_at),
    'members', consumer.described_members(g), 'pending', {}, 'type', 'consumer', 'target_epoch', fields.target_epoch,
    'assignor', fields.assignor or '', 'unsettled', consumer.unsettled(g),
    'offsets', redis.call('HGETALL', keys[5]), 'lags', group.lags(keys, args),
  }
end
