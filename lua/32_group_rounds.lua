-- A rebalance: from its begin, over the members that join it, to the next generation.
-- Source: GroupMetadataManager

-- Whether all members take part, and nobody who was given a member id is yet to join.
-- Source: ClassicGroup.hasAllMembersJoined
function group.is_gathered(g)
  return g.size == g.fields.joined and g.pending == 0
end

-- Begin a rebalance. From Empty it waits a while for further members, unless the delay is 0.
-- Source: GroupMetadataManager.prepareRebalance
function group.prepare(g, initial_delay)
  if group.is(g, 'CompletingRebalance') then
    group.set(g, 'assigned', nil)
  end
  local is_initial = group.is(g, 'Empty')
  group.move(g, 'PreparingRebalance')
  group.set(g, 'attempt', (g.fields.attempt or 0) + 1)
  group.set(g, 'joined', 0)
  group.set(g, 'synced', nil)
  group.set(g, 'sync_deadline', nil)
  group.set(g, 'catalog_version', nil)
  if is_initial then
    local remaining = math.max(g.fields.rebalance_timeout - initial_delay, 0)
    group.wait_for_more(g, initial_delay, initial_delay, remaining)
    group.set(g, 'expires_at', nil)
  else
    group.postpone(g)
  end
end

-- Wait for more members: the configured delay, the one that runs now, and how long it may yet be extended.
function group.wait_for_more(g, delay, now_delay, remaining)
  group.set(g, 'initial', string.format('%d %d %d', delay, now_delay, remaining))
  group.set(g, 'join_deadline', g.now + now_delay)
end

-- Members have until then to join.
function group.postpone(g)
  group.set(g, 'initial', nil)
  group.set(g, 'join_deadline', g.now + math.max(g.fields.rebalance_timeout or 0, 1))
end

-- A member was added to the first rebalance of a group, which may wait longer for more of them.
function group.note_new_member(g)
  if g.fields.initial and string.sub(g.fields.initial, -1) ~= '+' then
    group.set(g, 'initial', g.fields.initial .. '+')
  end
end

-- The delay of a first rebalance is over: extend it where members came, else complete the rebalance.
-- Source: GroupMetadataManager.tryCompleteInitialRebalanceElseSchedule
function group.end_delay(g)
  local delay, now_delay, remaining, more = string.match(g.fields.initial, '^(%d+) (%d+) (%d+)(%+?)$')
  delay, remaining = tonumber(delay), tonumber(remaining)
  if more == '+' and delay > 0 and remaining > 0 then
    group.wait_for_more(g, delay, math.min(delay, remaining), math.max(remaining - now_delay, 0))
  else
    group.complete(g)
  end
end

-- A member takes part, which begins a rebalance where none is going on and may complete it.
-- Source: GroupMetadataManager.maybePrepareRebalanceOrCompleteJoin
function group.take_part(g, id, member, initial_delay)
  if not group.is(g, 'PreparingRebalance') then
    group.prepare(g, initial_delay)
  end
  if member.attempt ~= g.fields.attempt then
    member.attempt = g.fields.attempt
    group.set(g, 'joined', g.fields.joined + 1)
  end
  group.put(g, id, member)
  group.complete_unless_initial(g)
end

-- Source: GroupMetadataManager.maybeCompleteJoinPhase
function group.complete_unless_initial(g)
  if group.is(g, 'PreparingRebalance') and not g.fields.initial and group.is_gathered(g) then
    group.complete(g)
  end
end

-- Rebalance, because members are gone.
function group.rebalance_without(g)
  if group.is(g, 'Stable') or group.is(g, 'CompletingRebalance') then
    group.prepare(g)
    group.complete_unless_initial(g)
  end
end

-- The leader, where it takes part, else one that does; nil where none does.
-- Source: ClassicGroup.maybeElectNewJoinedLeader
function group.elected(g, ids)
  local leader = g.fields.leader and group.member(g, g.fields.leader)
  if leader and group.has_joined(g, leader) then
    return g.fields.leader
  end
  for _, id in ipairs(ids) do
    if group.has_joined(g, g.members[id]) then
      return id
    end
  end
end

-- The protocol that most members put first among those that all support; of equals the one the leader prefers.
-- Source: ClassicGroup.selectProtocol
function group.chosen_protocol(g, ids, leader)
  local supporters, votes = group.supporters(g), {}
  for _, id in ipairs(ids) do
    local protocols = g.members[id].protocols
    for at = 1, #protocols, 2 do
      local name = protocols[at]
      if supporters[name] == g.size then
        votes[name] = (votes[name] or 0) + 1
        break
      end
    end
  end
  local preferred, best = g.members[leader].protocols, nil
  for at = 1, #preferred, 2 do
    local name = preferred[at]
    if votes[name] and (not best or votes[name] > votes[best]) then
      best = name
    end
  end
  return best
end

-- End the rebalance: who did not join is out, unless it is static, and the next generation begins.
-- Source: GroupMetadataManager.completeClassicGroupJoin, ClassicGroup.initNextGeneration
function group.complete(g)
  local ids = {}
  for _, id in ipairs(group.member_ids(g)) do
    local member = g.members[id]
    if group.has_joined(g, member) or member.instance_id ~= '' then
      ids[#ids + 1] = id
    else
      group.remove(g, id)
    end
  end
  local leader = group.elected(g, ids)
  if not leader and #ids > 0 then
    return group.postpone(g)
  end
  group.set(g, 'generation', g.fields.generation + 1)
  group.set(g, 'initial', nil)
  group.set(g, 'join_deadline', nil)
  if leader then
    group.set(g, 'protocol', group.chosen_protocol(g, ids, leader))
    group.set(g, 'leader', leader)
    group.begin_generation(g, ids)
  else
    group.become_empty(g)
  end
end

function group.begin_generation(g, ids)
  local longest, shortest = 0, math.huge
  for _, id in ipairs(ids) do
    local member = g.members[id]
    longest = math.max(longest, member.rebalance_timeout)
    shortest = math.min(shortest, member.session_timeout)
    group.renew(g, id, member.session_timeout)
  end
  group.move(g, 'CompletingRebalance')
  group.set(g, 'rebalance_timeout', longest)
  group.set(g, 'session_timeout', shortest)
  group.set(g, 'synced', 0)
  group.set(g, 'sync_deadline', g.now + math.max(longest, 1))
end

function group.become_empty(g)
  group.move(g, 'Empty')
  for _, name in ipairs({
    'protocol', 'leader', 'protocols', 'attempt', 'joined', 'synced', 'assigned', 'rebalance_timeout',
    'session_timeout',
  }) do
    group.set(g, name, nil)
  end
  group.set(g, 'expires_at', g.now + g.fields.retention)
end
