-- The description of a group of the consumer protocol, or of a share group.

-- The names of topics by their ids.
function consumer.topic_names(g)
  local names = {}
  for name, topic_id in string.gmatch(redis.call('HGET', g.keys[1], 'topics') or '', '(%S+) (%x+) %d+') do
    names[topic_id] = name
  end
  return names
end

-- An assignment as partitions `topic:partition`, without unknown topics.
function consumer.named_partitions(text, names)
  local partitions = {}
  for topic_id, indexes in string.gmatch(text, '(%x+):(%S+)') do
    for index in string.gmatch(names[topic_id] and indexes or '', '%d+') do
      partitions[#partitions + 1] = names[topic_id] .. ':' .. index
    end
  end
  return partitions
end

-- A member as names and values.
function consumer.described_member(g, id, deadline)
  local member = g.members[id]
  g.topic_names = g.topic_names or consumer.topic_names(g)
  return {
    'member_id', id, 'instance_id', member.instance_id, 'client_id', member.client_id,
    'client_host', member.client_host, 'session_timeout_ms', member.session_timeout,
    'session_ends_in_ms', group.from_now(g, deadline), 'rebalance_timeout_ms', member.rebalance_timeout,
    'topics', member.names, 'partitions', consumer.named_partitions(member.owned, g.topic_names),
    'metadata', '', 'assignment', '',
    'member_epoch', member.epoch, 'previous_epoch', member.previous_epoch, 'member_state', member.state,
    'target', consumer.target(g, id), 'owned', member.owned, 'revoking', member.revoking, 'regex', member.regex,
    'rack', member.rack, 'assignor', member.assignor, 'is_classic', member.classic and 1 or 0,
  }
end

-- The reason why the group is not Stable, in words; '' if it is Stable or Empty.
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
function consumer.describe(g, keys, partitions)
  local fields = g.fields
  local members, cursor = group.described_members(g, '0')
  return {
    code.NONE, 'id', fields.id, 'locator', fields.locator, 'state', fields.state,
    'state_for_ms', g.now - fields.state_since, 'generation', fields.generation, 'protocol_type', fields.type,
    'protocol', fields.assignor or '', 'leader', '', 'rebalance_ends_in_ms', false, 'sync_ends_in_ms', false,
    'expires_in_ms', group.is(g, 'Empty') and group.from_now(g, fields.expires_at),
    'members', members, 'pending', {}, 'type', fields.type, 'target_epoch', fields.target_epoch,
    'assignor', fields.assignor or '', 'unsettled', consumer.unsettled(g),
    'offsets', group.described_offsets(g), 'lags', group.lags(keys, partitions), 'cursor', cursor,
  }
end
