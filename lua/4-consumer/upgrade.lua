-- The upgrade: a classic group becomes one of the consumer protocol with the first member that speaks it. The others
-- stay by the classic functions (lua/4-consumer/classic.lua) until they come back with the new protocol.
-- Source: GroupMetadataManager.validateOnlineUpgrade, convertToConsumerGroup, ConsumerGroup.fromClassicGroup

-- Fields that only a classic group has.
consumer.CLASSIC_FIELDS = {
  'protocol_type', 'protocol', 'leader', 'initial', 'attempt', 'joined', 'synced', 'assigned', 'rebalance_timeout',
  'session_timeout', 'join_deadline', 'sync_deadline', 'expires_at',
}
consumer.CANNOT_UPGRADE = 'Cannot upgrade classic group {group} to consumer group because '

-- True if a group.consumer.migration.policy allows a step, `upgrade` or `downgrade`.
-- Source: ConsumerGroupMigrationPolicy
function consumer.allows(policy, step)
  return policy == 'bidirectional' or policy == step
end

-- The reason why a classic group stays one; nil if it may be upgraded.
function consumer.upgrade_refusal(g, request)
  if not consumer.allows(request.policy, 'upgrade') then
    return 'online upgrade is disabled.'
  elseif g.fields.protocol_type ~= 'consumer' then
    return 'the group does not use the consumer embedded protocol.'
  elseif g.size > request.max_size then
    return 'the group size exceeds the consumer group maximum size.'
  end
end

-- The partitions, by names, that a member says it owns and was not assigned: it may have yet to give them up.
function consumer.given_up(owned, assigned)
  local has, rest = {}, {}
  if owned == assigned or #owned == 0 then
    return rest
  end
  for _, named in ipairs(assigned) do
    has[named[1]] = has[named[1]] or {}
    for _, partition in ipairs(named[2]) do
      has[named[1]][partition] = true
    end
  end
  for _, named in ipairs(owned) do
    local partitions = {}
    for _, partition in ipairs(named[2]) do
      if not (has[named[1]] and has[named[1]][partition]) then
        partitions[#partitions + 1] = partition
      end
    end
    if #partitions > 0 then
      rest[#rest + 1] = { named[1], partitions }
    end
  end
  return rest
end

-- A classic member's subscription and partitions: {names, rack, owned, gives_up, is_reported}, by names of topics; nil
-- and the reason if they cannot be read. If a rebalance dropped its assignment, only the member itself reports its
-- partitions.
function consumer.brought(g, member, memories)
  local metadata, assignment = group.metadata(g, member), group.assignment(g, member)
  local owned, has_data = consumer.assigned(assignment, memories)
  local read = consumer.subscription(metadata ~= '' and metadata or member.protocols[2] or '', memories)
  if not read or not owned then
    return nil, 'the embedded consumer protocol is malformed.'
  elseif has_data then
    return nil, 'an unsupported custom assignor is in use. Please refer to the documentation or switch to a default '
      .. 'assignor before re-attempting the upgrade.'
  end
  local is_reported = assignment == '' and not group.is(g, 'Stable')
  return {
    names = read.topics, rack = read.rack, owned = is_reported and read.owned or owned,
    gives_up = is_reported and {} or consumer.given_up(read.owned, owned), is_reported = is_reported,
  }
end

-- The subscriptions and partitions of all members by their ids, and two sets of names: the topics that they subscribe
-- to, and the topics that they own; nil and the reason if one cannot be read.
function consumer.all_brought(g)
  local all, wanted, owned, memories, last = {}, {}, {}, consumer.memories(), nil
  for _, id in ipairs(group.member_ids(g)) do
    local brought, why = consumer.brought(g, g.members[id], memories)
    if not brought then
      return nil, why
    end
    all[id] = brought
    for _, name in ipairs(brought.names ~= last and brought.names or {}) do
      wanted[name] = true
    end
    last = brought.names
    for _, part in ipairs({ brought.owned, brought.gives_up }) do
      for _, named in ipairs(part) do
        owned[named[1]] = true
      end
    end
  end
  return all, wanted, owned
end

-- The names in some sets, in order.
function consumer.sorted(...)
  local names = {}
  for _, set in ipairs({ ... }) do
    for name in pairs(set) do
      names[#names + 1] = name
    end
  end
  return consumer.names(names)
end

-- Give a member a topic's free partitions, of a text in order. Returns true if it got all of them.
function consumer.claim(g, id, topic_id, text)
  local prefix, is_all = topic_id .. ':', true
  for index in string.gmatch(text, '%-?%d+') do
    local partition = prefix .. index
    if g.further[partition] or tonumber(index) < 0 then
      is_all = false
    else
      g.further[partition] = id
    end
  end
  return is_all
end

-- Give a member its free partitions. Returns their text, and true if it got all of them.
function consumer.claimed(g, id, owned, topics)
  local texts, seen, is_all = {}, {}, true
  for _, named in ipairs(owned) do
    local topic_id = #named[2] > 0 and (topics[named[1]] or {}).id
    if topic_id then
      table.sort(named[2])
      local text = table.concat(named[2], ',')
      is_all = consumer.claim(g, id, topic_id, text) and is_all and not seen[topic_id]
      seen[topic_id] = true
      texts[#texts + 1] = topic_id .. ':' .. text
    end
  end
  table.sort(texts)
  local claimed = table.concat(texts, ' ')
  if is_all then
    return claimed, true
  end
  local own = {}
  for partition in pairs(consumer.partitions(claimed)) do
    own[partition] = g.further[partition] == id or nil
  end
  return consumer.text(own), false
end

-- A classic member's record in the consumer group. Its target is what it owns.
function consumer.upgraded(g, id, member, brought, topics)
  local owned, is_all = consumer.claimed(g, id, brought.owned, topics)
  brought.is_claimed = is_all
  g.further['target:' .. id] = owned ~= '' and owned or nil
  return {
    session_timeout = member.session_timeout, epoch = g.fields.generation, previous_epoch = g.fields.generation,
    state = 'STABLE', rebalance_timeout = member.rebalance_timeout, instance_id = member.instance_id,
    rack = brought.rack, client_id = member.client_id, client_host = member.client_host, assignor = '', regex = '',
    names = brought.names, owned = owned, revoking = '', revoke_by = false, classic = member.protocols,
  }
end

-- Have a cooperative member own the partitions that it is about to give up, until it joins without them.
function consumer.keep_given_up(g, id, brought, topics)
  local kept = consumer.claimed(g, id, brought.gives_up, topics)
  if kept ~= '' then
    local owned = consumer.text(consumer.partitions(brought.record.owned .. ' ' .. kept))
    brought.record = consumer.with(brought.record, { owned = owned })
  end
end

-- Make the members' records. Assigned partitions come before reported ones, which must take none of them away.
function consumer.upgrade_members(g, all, topics)
  local ids = group.member_ids(g)
  for _, is_reported in ipairs({ false, true }) do
    for _, id in ipairs(ids) do
      if all[id].is_reported == is_reported then
        local member = g.members[id]
        all[id].record = consumer.upgraded(g, id, member, all[id], topics)
        group.renew(g, id, member.session_timeout)
      end
    end
  end
  for _, id in ipairs(ids) do
    consumer.keep_given_up(g, id, all[id], topics)
    g.members[id], g.written[id] = all[id].record, true
  end
end

-- The lines of the topics that members subscribe to.
function consumer.subscribed_lines(wanted, topics)
  local lines = {}
  for _, name in ipairs(consumer.sorted(wanted)) do
    if topics[name] then
      lines[#lines + 1] = string.format('%s %s %d', name, topics[name].id, topics[name].partitions)
    end
  end
  return table.concat(lines, '\n')
end

-- True if members have all partitions of the topics that they want. Nobody has the partitions that came since the
-- leader last looked, nor those that it has yet to hand on.
function consumer.has_all(all, wanted, topics)
  local counts = {}
  for _, brought in pairs(all) do
    if not brought.is_claimed then
      return false
    end
    for _, named in ipairs(brought.owned) do
      counts[named[1]] = (counts[named[1]] or 0) + #named[2]
    end
  end
  for name in pairs(wanted) do
    if topics[name] and (counts[name] or 0) < topics[name].partitions then
      return false
    end
  end
  return true
end

function consumer.convert(g, all, wanted, request)
  local topics = consumer.topics_by_name(request.topics)
  for _, name in ipairs(consumer.CLASSIC_FIELDS) do
    group.set(g, name, nil)
  end
  consumer.begin(g, 'consumer')
  consumer.upgrade_members(g, all, topics)
  group.set(g, 'settled', g.size)
  group.set(g, 'state', 'Stable')
  group.set(g, 'state_since', g.now)
  group.set(g, 'catalog_version', request.catalog_version)
  g.further.topics = consumer.subscribed_lines(wanted, topics)
  g.lacks_target = not consumer.has_all(all, wanted, topics)
  g.announced = true
end

-- True if the ordered lines of some topics lack one of the names, because its member came after the front-end read
-- them. A text that can be no topic's name needs no line.
function consumer.lacks_lines(text, names)
  local lines, at = '\n' .. text, 1
  for _, name in ipairs(names) do
    if string.find(name, '^[%w._-]+$') then
      at = string.find(lines, '\n' .. name .. ' ', at, true)
      if not at then
        return true
      end
    end
  end
  return false
end

-- Turn a classic group with members into one of the consumer protocol, for a member that joins it.
-- Returns a reply if it does not: a refusal, or the topics with missing lines. nil if it does, or if the
-- member may not join it.
function consumer.upgrade(g, request)
  local why, all, wanted, owned = consumer.upgrade_refusal(g, request), nil, nil, nil
  if not why then
    all, wanted, owned = consumer.all_brought(g)
    why = not all and wanted
  end
  if why then
    return { code.GROUP_ID_NOT_FOUND, request.member_id, consumer.CANNOT_UPGRADE .. why }
  elseif g.size >= request.max_size and not group.member(g, request.member_id) or consumer.id_refusal(g, request) then
    return nil
  end
  local names = consumer.sorted(wanted, owned)
  -- The fields of a group that became a classic one in this very call have yet to be written.
  if g.is_rewritten or consumer.lacks_lines(request.topics, names) then
    local answer = { code.NONE, request.member_id, 'topics' }
    for _, name in ipairs(names) do
      answer[#answer + 1] = name
    end
    return answer
  end
  consumer.convert(g, all, wanted, request)
end
