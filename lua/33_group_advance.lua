-- What time does to a group.

-- Take out the members, and the ids that are yet to join, whose session is over. All of them go before a rebalance may
-- be complete, so that none is carried into the next generation.
-- Source: GroupMetadataManager.expireClassicGroupMemberHeartbeat
function group.expire_sessions(g)
  local has_lost_member, has_lost_pending = false, false
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', g.keys[3], '-inf', g.now)) do
    if g.deadlines[id] == nil then
      if group.member(g, id) then
        group.remove(g, id)
        has_lost_member = true
      else
        group.remove_pending(g, id)
        has_lost_pending = true
      end
    end
  end
  if has_lost_member then
    group.rebalance_without(g)
  end
  if (has_lost_member or has_lost_pending) and group.is(g, 'PreparingRebalance') and group.is_gathered(g) then
    group.complete(g)
  end
end

-- Nobody could call for a while, or nobody did: every session begins anew, once, until its member is heard again; and
-- again where the caller itself was kept from calling for as long as its own session.
-- As GroupMetadataManager does it when a coordinator loads a group.
function group.prolong(g, caller)
  local gap = g.now - g.fields.touched
  local was_away = gap >= group.member(g, caller).session_timeout
  local sessions = redis.call('ZRANGE', g.keys[3], 0, -1, 'WITHSCORES')
  for at = 1, #sessions, 2 do
    local id, deadline = sessions[at], tonumber(sessions[at + 1])
    if was_away or deadline % 1 == 0 then
      local member = group.member(g, id)
      local timeout = member and member.session_timeout or g.fields.session_timeout
      g.deadlines[id] = math.max(math.floor(deadline), g.now + timeout) + 0.5
    end
  end
  for _, name in ipairs({ 'join_deadline', 'sync_deadline' }) do
    if g.fields[name] then
      group.set(g, name, g.fields[name] + gap)
    end
  end
end

-- Whether the group was left alone for so long that it says nothing about its members.
function group.was_alone(g)
  local shortest = g.fields.session_timeout
  return shortest and g.now - g.fields.touched > shortest / 2
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

-- Do everything that became due since the group was touched; caller is the id of a member that shows that it lives.
function group.advance(g, caller)
  if not group.exists(g) then
    return
  end
  if caller and group.was_alone(g) and group.member(g, caller) then
    group.prolong(g, caller)
  end
  group.expire_sessions(g)
  group.settle(g)
end

-- When a parked caller should ask again, in ms: at the group's next deadline, and often enough to hold its session
-- and for the group not to seem left alone.
function group.wait_ms(g)
  local due = g.fields.next_due or math.huge
  return math.max(math.min(due - g.now, math.ceil(g.fields.session_timeout / 3)), 1)
end
