-- A group of the consumer protocol becomes a classic one when the last member that speaks that protocol is gone.
-- Source: GroupMetadataManager.validateOnlineDowngradeWithFencedMembers, validateOnlineDowngradeWithReplacedMember,
-- convertToClassicGroup, ClassicGroup.fromConsumerGroup

-- Whether a group of `size` members, all of which are classic, becomes a classic one. The policy is that of the last
-- join by the consumer protocol, and the most members of a classic group that of the last classic join.
function consumer.may_downgrade(g, size)
  return size > 0 and consumer.allows(g.fields.policy, 'downgrade') and size <= (g.fields.max_size or math.huge)
end

-- A member's classic record. What it has and is yet to give up is its assignment, so that another upgrade would know
-- who owns what.
function consumer.downgraded(g, member, names)
  local owned = member.owned
  if member.revoking ~= '' then
    owned = consumer.text(consumer.places(owned .. ' ' .. member.revoking))
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
  -- Places and targets are all gone, which are most of the hash.
  g.is_rewritten = true
  group.set(g, 'rebalance_timeout', longest)
  group.set(g, 'session_timeout', shortest)
end

-- Make a group in which all members are classic a classic one. It is Stable; nobody leads it in particular.
function consumer.downgrade(g)
  local ids = group.member_ids(g)
  consumer.downgrade_members(g, ids)
  consumer.finish(g)
  group.set(g, 'state', 'Stable')
  group.set(g, 'state_since', g.now)
  group.set(g, 'protocol_type', 'consumer')
  group.set(g, 'leader', ids[1])
  group.set(g, 'protocol', group.chosen_protocol(g, ids, ids[1]))
  group.set(g, 'attempt', 1)
  group.set(g, 'joined', 0)
  group.set(g, 'synced', g.size)
  group.set(g, 'assigned', g.fields.generation)
  g.announced = true
end

-- Take members out, if that leaves classic ones alone and the group may become a classic one. They are to join anew.
-- Returns whether it did.
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
