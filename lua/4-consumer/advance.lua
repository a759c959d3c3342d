-- The passing of time in a group of the consumer protocol.

-- Change the times at which members must have given up partitions. The given function returns a member's new time.
function consumer.move_revocations(g, moved)
  for _, id in ipairs(group.member_ids(g)) do
    local member = group.member(g, id)
    if member.revoke_by then
      consumer.put(g, id, consumer.with(member, { revoke_by = moved(member) }))
    end
  end
end

-- Move the times of members back.
function consumer.turn_back(g, back)
  consumer.move_revocations(g, function(member)
    return member.revoke_by - back
  end)
end

-- Have the times of members count outages.
function consumer.count_outages(g)
  consumer.move_revocations(g, function(member)
    return group.prolonged(g, member.revoke_by, member.rebalance_timeout)
  end)
end

-- Take members out, and raise the group epoch once. Source: GroupMetadataManager.consumerGroupFenceMembers
function consumer.fence(g, ids)
  if group.is_consumer(g) and consumer.downgrade_without(g, ids) then
    return
  end
  for _, id in ipairs(ids) do
    consumer.remove(g, id)
  end
  if #ids > 0 then
    consumer.raise(g)
  end
end

-- Take out all members at once. The hash is rewritten: most of it are partitions and targets, which are all gone.
function consumer.desert(g)
  group.desert(g)
  g.is_rewritten = true
  group.set(g, 'settled', 0)
  group.set(g, 'consumers', 0)
  consumer.raise(g)
end

-- Take out members with expired sessions, and members that did not give up partitions in time. A session without a
-- member remains when somebody changed the keys by hand.
-- Source: GroupMetadataManager.scheduleConsumerGroupSessionTimeout, scheduleConsumerGroupRebalanceTimeout
function consumer.advance(g)
  if group.is_deserted(g) then
    consumer.desert(g)
  else
    local gone, strays = group.overdue(g)
    for _, id in ipairs(strays) do
      group.remove_pending(g, id)
    end
    consumer.fence(g, gone)
  end
  if group.is_modern(g) then
    consumer.note_state(g)
  end
end
