-- What time does to a group, and what an outage does to time.

-- When Redis could not be called, as a list of {from, to}. The text is `served_until from-to from-to ...` of times in
-- ms, oldest outage first, '' where nothing is known. What lies more than a moment behind served_until is an outage
-- too, which lasts until now: so a call that lay in the queue of a frozen server knows of it.
function group.outages(text, now)
  local found = {}
  if text == nil or text == '' then
    return found
  end
  local served_until, rest = string.match(text, '^(%d+)(.*)$')
  for outage in string.gmatch(rest or '?', '%S+') do
    local from, to = string.match(outage, '^(%d+)%-(%d+)$')
    if not served_until or not from or tonumber(to) < tonumber(from) then
      error('outages are not `served_until from-to ...`: ' .. text, 0)
    end
    found[#found + 1] = { from = tonumber(from), to = tonumber(to) }
  end
  if now - served_until > group.SILENCE then
    found[#found + 1] = { from = tonumber(served_until), to = now }
  end
  return found
end

-- Whether a call waited in the queue of a server that stood still, or in a front-end that did. Who asked may have gone
-- elsewhere since, and been answered there: such a call must not undo what was done after it.
function group.is_late(outages)
  local served_until, now = string.match(outages, '^%d+'), value.now_ms()
  return served_until and now - served_until > group.SILENCE and #group.outages(outages, now) > 0
end

-- A deadline that was not past when an outage began is no earlier than its end and the timeout. This may be done any
-- number of times. As GroupMetadataManager does it when a coordinator loads a group.
function group.prolonged(g, deadline, timeout)
  for _, outage in ipairs(g.outages) do
    if deadline > outage.from then
      deadline = math.max(deadline, outage.to + timeout)
    end
  end
  return deadline
end

-- The rebalance and the sync that outages cut into. The delay of a first rebalance waits for nobody in particular.
function group.prolong_rebalance(g)
  local timeout = math.max(g.fields.rebalance_timeout or 0, 1)
  for _, name in ipairs({ 'join_deadline', 'sync_deadline' }) do
    if g.fields[name] and not g.fields.initial then
      group.set(g, name, group.prolonged(g, g.fields[name], timeout))
    end
  end
end

-- The members and the ids yet to join whose session is over, as two lists. Those that an outage kept get a new end.
function group.overdue(g)
  local members, pending = {}, {}
  local due = redis.call('ZRANGEBYSCORE', g.keys[3], '-inf', g.now, 'WITHSCORES')
  for at = 1, #due, 2 do
    local id, deadline = due[at], tonumber(due[at + 1])
    local member = group.member(g, id)
    local timeout = member and member.session_timeout or g.fields.session_timeout or group.SHORTEST_SESSION
    local prolonged = group.prolonged(g, deadline, timeout)
    if prolonged > g.now then
      g.deadlines[id] = prolonged
    elseif member then
      members[#members + 1] = id
    else
      pending[#pending + 1] = id
    end
  end
  return members, pending
end

-- Take out the members, and the ids that are yet to join, whose session is over. All of them go before a rebalance may
-- be complete, so that none is carried into the next generation.
-- Source: GroupMetadataManager.expireClassicGroupMemberHeartbeat
function group.expire_sessions(g)
  local members, pending = group.overdue(g)
  for _, id in ipairs(members) do
    group.remove(g, id)
  end
  for _, id in ipairs(pending) do
    group.remove_pending(g, id)
  end
  if #members > 0 then
    group.rebalance_without(g)
  end
  if #members + #pending > 0 and group.is(g, 'PreparingRebalance') and group.is_gathered(g) then
    group.complete(g)
  end
end

-- Give up the members whose assignment was not asked for in time, and rebalance.
-- Source: GroupMetadataManager.expirePendingSync
function group.expire_sync(g)
  group.set(g, 'sync_deadline', nil)
  for _, id in ipairs(group.member_ids(g)) do
    if g.members[id].synced ~= g.fields.generation then
      group.remove(g, id)
    end
  end
  group.rebalance_without(g)
end

-- Do what became due of the rebalance and the sync. Each of them sets a later deadline or none.
function group.settle(g)
  for _ = 1, 4 do
    if (g.fields.join_deadline or math.huge) <= g.now then
      if g.fields.initial then
        group.end_delay(g)
      else
        group.complete(g)
      end
    elseif (g.fields.sync_deadline or math.huge) <= g.now then
      group.expire_sync(g)
    else
      return
    end
  end
end

-- Do everything that became due, of a group that is read; outages is the text that the caller was given.
function group.advance(g, outages)
  g.outages = group.outages(outages, g.now)
  if group.is_consumer(g) then
    group.consumer.advance(g)
  elseif group.exists(g) then
    group.prolong_rebalance(g)
    group.expire_sessions(g)
    group.settle(g)
  end
end

-- When a parked caller should ask again, in ms: at the group's next deadline, and often enough to hold its session.
function group.wait_ms(g)
  local due = g.fields.next_due or math.huge
  return math.max(math.min(due - g.now, math.ceil(g.fields.session_timeout / 3)), 1)
end
