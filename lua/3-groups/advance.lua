-- The passing of time: it ends sessions and rebalances, and outages prolong them.

-- The outages as a list of {from, to}. The text is `served_until from-to from-to ...` of times in ms, oldest outage
-- first, '' if nothing is known. If served_until is more than a moment ago, an outage lasts from then until now. So a
-- call that lay in the queue of a frozen server knows of it. An outage that ends later was noted before the clock went
-- back, and does not count.
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
    if tonumber(to) <= now then
      found[#found + 1] = { from = tonumber(from), to = tonumber(to) }
    end
  end
  if now - served_until > group.SILENCE then
    found[#found + 1] = { from = tonumber(served_until), to = now }
  end
  return found
end

-- Whether a call waited in the queue of a server that stood still, or in a front-end that did. Its client may have gone
-- elsewhere since, and been answered there. Such a call must not undo what other calls did meanwhile.
function group.is_late(outages)
  local served_until, now = string.match(outages, '^%d+'), value.now_ms()
  return served_until and now - served_until > group.SILENCE and #group.outages(outages, now) > 0
end

-- A deadline after outages: if it was not past when an outage began, it is no earlier than the outage's end plus the
-- timeout. May be repeated. GroupMetadataManager does the same when a coordinator loads a group.
function group.prolonged(g, deadline, timeout)
  for _, outage in ipairs(g.outages) do
    if deadline > outage.from then
      deadline = math.max(deadline, outage.to + timeout)
    end
  end
  return deadline
end

-- Prolong the rebalance and the sync that an outage cut into. The delay of a first rebalance waits for no member.
function group.prolong_rebalance(g)
  local timeout = math.max(g.fields.rebalance_timeout or 0, 1)
  for _, name in ipairs({ 'join_deadline', 'sync_deadline' }) do
    if g.fields[name] and not g.fields.initial then
      group.set(g, name, group.prolonged(g, g.fields[name], timeout))
    end
  end
end

-- The sessions that may be over: member id, end, ... One call takes out a thousand, and the next one goes on.
function group.due_sessions(g)
  return redis.call('ZRANGEBYSCORE', g.keys[3], '-inf', g.now, 'WITHSCORES', 'LIMIT', 0, group.BATCH)
end

-- Whether every session of a large group is over, and no outage is known that might prolong one. Then no member has to
-- be read.
function group.is_deserted(g)
  return g.size > group.BATCH and #g.outages == 0
    and redis.call('ZCOUNT', g.keys[3], '-inf', g.now) == redis.call('ZCARD', g.keys[3])
end

-- Take out all members at once.
function group.desert(g)
  g.members, g.is_complete, g.is_deserted, g.announced = {}, true, true, true
  g.size, g.pending, g.supporters, g.has_counted = 0, 0, {}, true
  group.set(g, 'leader', nil)
  group.set(g, 'joined', 0)
  group.set(g, 'metadata_bytes', 0)
end

-- The members, and the ids that have yet to join, whose sessions are over. Outages prolong the others.
function group.overdue(g)
  local members, pending = {}, {}
  local due = group.due_sessions(g)
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

-- Take out the members, and the ids that have yet to join, whose sessions are over. All of them go before a rebalance
-- may complete, so that the next generation has none of them.
-- Source: GroupMetadataManager.expireClassicGroupMemberHeartbeat
function group.expire_sessions(g)
  if group.is_deserted(g) then
    group.desert(g)
    group.rebalance_without(g)
    return group.is(g, 'PreparingRebalance') and group.complete(g)
  end
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

-- Take out the members that did not sync in time, and rebalance.
-- Source: GroupMetadataManager.expirePendingSync
function group.expire_sync(g)
  group.set(g, 'sync_deadline', nil)
  local late = {}
  group.each_head(g, function(id, _, _, _, synced)
    if synced ~= g.fields.generation then
      late[#late + 1] = id
    end
  end)
  for _, id in ipairs(late) do
    group.remove(g, id)
  end
  group.rebalance_without(g)
end

-- Do the due work of the rebalance and the sync. Each step sets a later deadline or none.
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

-- Do everything that became due in a group. The front-end gave the text of outages.
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

-- The time in ms after which a parked caller asks again: at the next deadline, and often enough to hold its session.
function group.wait_ms(g)
  local due = g.fields.next_due or math.huge
  return math.max(math.min(due - g.now, math.ceil(g.fields.session_timeout / 3)), 1)
end
