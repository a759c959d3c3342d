-- The passing of time in a group of the consumer protocol.

-- Move the times back by which members give up partitions.
function consumer.turn_back(g, back)
  for _, id in ipairs(group.member_ids(g)) do
    local member = group.member(g, id)
    if member.revoke_by then
      consumer.put(g, id, consumer.with(member, { revoke_by = member.revoke_by - back }))
    end
  end
end

-- The times of a member's end and of its revocation after outages. An outage prolongs both: the member has a whole
-- session from the outage's end.
function consumer.prolonged(g, member, deadline)
  local ends = group.prolonged(g, deadline, member.session_timeout)
  local revoke_by = member.revoke_by and group.prolonged(g, member.revoke_by, member.rebalance_timeout)
  return math.min(ends, revoke_by or math.huge), revoke_by
end

-- Take members out, and raise the group epoch once. Source: GroupMetadataManager.consumerGroupFenceMembers
function consumer.fence(g, ids)
  if consumer.downgrade_without(g, ids) then
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

-- Take out the members whose sessions are over, or that did not give up partitions in time.
-- Source: GroupMetadataManager.scheduleConsumerGroupSessionTimeout, scheduleConsumerGroupRebalanceTimeout
function consumer.advance(g)
  if group.is_deserted(g) then
    consumer.desert(g)
  end
  local due = g.is_deserted and {} or group.due_sessions(g)
  local gone = {}
  for at = 1, #due, 2 do
    local id = due[at]
    local member = group.member(g, id)
    local deadline, revoke_by = consumer.prolonged(g, member, tonumber(due[at + 1]))
    if deadline <= g.now then
      gone[#gone + 1] = id
    else
      g.deadlines[id] = deadline
      if revoke_by ~= member.revoke_by then
        consumer.put(g, id, consumer.with(member, { revoke_by = revoke_by }))
      end
    end
  end
  consumer.fence(g, gone)
  if group.is_consumer(g) then
    consumer.note_state(g)
  end
end
