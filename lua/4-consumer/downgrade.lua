-- The downgrade: a group of the consumer protocol becomes a classic one with the end of its last consumer member.
-- Source: GroupMetadataManager.validateOnlineDowngradeWithFencedMembers, validateOnlineDowngradeWithReplacedMember,
-- convertToClassicGroup, ClassicGroup.fromConsumerGroup

-- True if a group of `size` members, all classic, becomes a classic one. The last join by the consumer protocol named
-- the policy, and the last classic join the most members of a classic group.
function consumer.may_downgrade(g, size)
  return size > 0 and consumer.allows(g.fields.policy, 'downgrade') and size <= (g.fields.max_size or math.huge)
end

-- A member's classic record. Its assignment is all that it owns or has yet to give up, so that another upgrade would
-- know the owners.
function consumer.downgraded(g, member, names)
  local owned = member.owned
  if member.revoking ~= '' then
    owned = consumer.text(consumer.partitions(owned .. ' ' .. member.revoking))
  end
  return {
    session_timeout = member.session_timeout, rebalance_timeout = member.rebalance_timeout,
    instance_id = member.instance_id, client_id = member.client_id, client_host = member.client_host,
    protocols = member.classic, attempt = 1, synced = g.fields.generation, assigned = g.fields.generation,
    assignment = consumer.encoded(consumer.named(owned, names), consumer.version(member.classic[2])),
  }
end

function consumer.downgrade_members(g, ids)
  local names, longest, shortest = consumer.topic_names(g), 0, math.huge
  for _, id in ipairs(ids) do
    local member = g.members[id]
    longest = math.max(longest, member.rebalance_timeout)
    shortest = math.min(shortest, member.session_timeout)
    g.members[id], g.written[id] = consumer.downgraded(g, member, names), true
    group.renew(g, id, member.session_timeout)
  end
  -- Most of the hash are partitions and targets, which are all gone.
  g.is_rewritten = true
  group.set(g, 'rebalance_timeout', longest)
  group.set(g, 'session_timeout', shortest)
end

-- Make a group of classic members a classic one. It is Stable, and any member may lead it.
function consumer.downgrade(g)
  local ids = group.member_ids(g)
  consumer.downgrade_members(g, ids)
  consumer.finish(g)
  group.set(g, 'state', 'Stable')
  group.set(g, 'state_since', g.now)
  group.set(g, 'protocol_type', 'consumer')
  group.set(g, 'leader', ids[1])
  group.set(g, 'protocol', group.chosen_protocol(g, group.tally(g, ids[1])))
  group.set(g, 'attempt', 1)
  group.set(g, 'joined', 0)
  group.set(g, 'synced', g.size)
  group.set(g, 'assigned', g.fields.generation)
  g.announced = true
end

-- Take members out if that leaves classic members alone and the group may become a classic one. The rest must join
-- again. Returns true if it did.
function consumer.downgrade_without(g, gone)
  local consumers = g.fields.consumers
  for _, id in ipairs(gone) do
    consumers = consumers - (group.member(g, id).classic and 0 or 1)
  end
  if consumers > 0 or #gone == 0 or not consumer.may_downgrade(g, g.size - #gone) then
    return false
  end
  for _, id in ipairs(gone) do
    consumer.remove(g, id)
  end
  consumer.downgrade(g)
  group.prepare(g)
  return true
end
