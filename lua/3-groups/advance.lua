-- The passing of time: it ends sessions and rebalances, and outages prolong them.

-- The outages as a list of {from, to}. The text is `served_until from-to from-to ...` of times in ms, oldest outage
-- first, '' if nothing is known. If served_until is more than a moment ago, an outage lasts from then until now. So a
-- call that lay in the queue of a frozen server knows of it. But if a group was served meanwhile, that was the caller's
-- own pause, at least until then. An outage that ends later was noted before the clock went back, and does not count.
function group.outages(text, now, served)
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
  served_until = math.max(tonumber(served_until), served or 0)
  if now - served_until > group.SILENCE then
    found[#found + 1] = { from = served_until, to = now }
  end
  return found
end

-- True if a call waited in the queue of a server that stood still, or in a front-end that did. Its client may have gone
-- elsewhere since, and got an answer there. Such a call must not undo what other calls did meanwhile.
function group.is_late(outages)
  local served_until, now = string.match(outages, '^%d+'), value.now_ms()
  return served_until and now - served_until > group.SILENCE and #group.outages(outages, now) > 0
end

-- A deadline after the outages that it does not count yet, if it was not past when they began. The first outage since
-- the deadline was set gives the whole timeout again. GroupMetadataManager does so when a coordinator loads a group. A
-- further one gives back its own length. So a member that died is out although outages recur.
function group.prolonged(g, deadline, timeout)
  local resumed = g.fields.resumed or 0
  for _, outage in ipairs(g.outages) do
    local set = deadline - timeout
    if deadline > outage.from and set < outage.to then
      deadline = set > resumed and outage.to + timeout or deadline + outage.to - outage.from
    end
    resumed = outage.to
  end
  return deadline
end

-- The timeouts of sessions by the members' ids.
function group.timeouts(g)
  local timeouts = {}
  group.each(g, function(id, record, member)
    timeouts[id] = record and group.session_timeout(record) or member.session_timeout
  end)
  return timeouts
end

-- The outages that a group's deadlines do not count yet.
function group.uncounted_outages(g, text)
  local resumed, found = g.fields.resumed or 0, {}
  for _, outage in ipairs(group.outages(text, g.now, g.fields.clock)) do
    if outage.to > resumed then
      found[#found + 1] = { from = math.max(outage.from, resumed), to = outage.to }
    end
  end
  return found
end

-- Have all deadlines count the outages that came since the last ones. The delay of a first rebalance waits for no
-- member, so it counts none.
function group.count_outages(g, text)
  g.outages = group.uncounted_outages(g, text)
  if #g.outages == 0 or not group.exists(g) then
    return
  end
  local timeout = math.max(g.fields.rebalance_timeout or 0, 1)
  for _, name in ipairs({ 'join_deadline', 'sync_deadline' }) do
    if g.fields[name] and not g.fields.initial then
      group.set(g, name, group.prolonged(g, g.fields[name], timeout))
    end
  end
  if group.is_consumer(g) then
    group.consumer.count_outages(g)
  end
  local timeouts, sessions = group.timeouts(g), redis.call('ZRANGE', g.keys[3], 0, -1, 'WITHSCORES')
  for at = 1, #sessions, 2 do
    local id = sessions[at]
    timeout = timeouts[id] or g.fields.session_timeout or group.SHORTEST_SESSION
    local ends = group.prolonged(g, group.session_end(g, id, sessions[at + 1]), timeout)
    g.deadlines[id] = math.min(ends, g.members[id] and g.members[id].revoke_by or math.huge)
  end
  group.set(g, 'resumed', g.outages[#g.outages].to)
end

-- The sessions that may be over: member id, end, ... One call takes out a thousand, and the next one goes on.
function group.due_sessions(g)
  return redis.call('ZRANGEBYSCORE', g.keys[3], '-inf', g.now, 'WITHSCORES', 'LIMIT', 0, group.BATCH)
end

-- The end of a session, which this call may have moved.
function group.session_end(g, id, score)
  return g.deadlines[id] or tonumber(score)
end

-- True if all members go: the members hash was damaged, or every session of a large group is over, and this call moved
-- none. Then no member has to be read.
function group.is_deserted(g)
  return g.is_damaged or g.size > group.BATCH and not next(g.deadlines)
    and redis.call('ZCOUNT', g.keys[3], '-inf', g.now) == redis.call('ZCARD', g.keys[3])
end

-- Take out all members at once.
function group.desert(g)
  g.members, g.deadlines, g.is_complete, g.is_deserted, g.announced = {}, {}, true, true, true
  g.size, g.pending, g.supporters, g.has_counted = 0, 0, {}, true
  group.set(g, 'leader', nil)
  group.set(g, 'joined', 0)
  group.set(g, 'metadata_bytes', 0)
end

-- The members, and the ids that have yet to join, with expired sessions.
function group.overdue(g)
  local members, pending = {}, {}
  local due = group.due_sessions(g)
  for at = 1, #due, 2 do
    local id = due[at]
    if group.session_end(g, id, due[at + 1]) <= g.now then
      local overdue = group.member(g, id) and members or pending
      overdue[#overdue + 1] = id
    end
  end
  return members, pending
end

-- Take out the members, and the ids that have yet to join, with expired sessions. All of them go before a rebalance
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
  group.count_outages(g, outages)
  if group.is_modern(g) then
    group.consumer.advance(g)
  elseif group.exists(g) then
    group.expire_sessions(g)
    group.settle(g)
  end
end

-- The time in ms after which a parked caller asks again: at the next deadline, and often enough to hold its session.
function group.wait_ms(g)
  local due = g.fields.next_due or math.huge
  return math.max(math.min(due - g.now, math.ceil(g.fields.session_timeout / 3)), 1)
end
