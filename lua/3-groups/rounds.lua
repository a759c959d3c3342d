-- A rebalance: its beginning, the joins of its members, and the next generation.
-- Source: GroupMetadataManager

-- True if all members take part, and every handed-out id has joined.
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

-- Wait for more members, with the configured delay, the present delay, and the time left for extensions.
function group.wait_for_more(g, delay, now_delay, remaining)
  group.set(g, 'initial', string.format('%d %d %d', delay, now_delay, remaining))
  group.set(g, 'join_deadline', g.now + now_delay)
end

-- Give members their rebalance timeout to join.
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

-- The delay of a first rebalance is over: extend it if members came, else complete the rebalance.
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

-- A member takes part. This begins a rebalance if there is none, and may complete it.
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

-- Rebalance, because members left or expired.
function group.rebalance_without(g)
  if group.is(g, 'Stable') or group.is(g, 'CompletingRebalance') then
    group.prepare(g)
    group.complete_unless_initial(g)
  end
end

-- The facts of all members that a rebalance needs: ids and sessions of the members that stay; gone, the ids of dynamic
-- members that did not join; joined, the leader if it joined, else another member that did; the longest and the
-- shortest timeouts; named, how many members have the same protocols in the same order, by their packed names; leads,
-- the leader's packed names.
-- Source: ClassicGroup.maybeElectNewJoinedLeader
function group.tally(g, leader)
  local ids, sessions, gone, named = {}, {}, {}, {}
  local t = { ids = ids, sessions = sessions, gone = gone, named = named, longest = 0, shortest = math.huge }
  local attempt = group.is(g, 'PreparingRebalance') and g.fields.attempt
  group.each_head(g, function(id, session_timeout, rebalance_timeout, joined, _, _, is_static, names)
    if joined == attempt and (not t.joined or id == leader) then
      t.joined, t.leads = id, names
    elseif id == leader and not attempt then
      t.leads = names
    end
    if attempt and joined ~= attempt and is_static == 0 then
      gone[#gone + 1] = id
      return
    end
    ids[#ids + 1] = id
    sessions[#ids] = session_timeout
    t.longest = math.max(t.longest, rebalance_timeout)
    t.shortest = math.min(t.shortest, session_timeout)
    named[names] = (named[names] or 0) + 1
  end)
  return t
end

-- The number of members that prefer each protocol, of the protocols that all members support.
function group.votes(g, named)
  local supporters, votes = group.supporters(g), {}
  for names, count in pairs(named) do
    for _, name in ipairs(cmsgpack.unpack(names)) do
      if supporters[name] == g.size then
        votes[name] = (votes[name] or 0) + count
        break
      end
    end
  end
  return votes
end

-- The protocol that most members prefer among the common ones; the leader's preference decides between equals.
-- Source: ClassicGroup.selectProtocol
function group.chosen_protocol(g, tally)
  local votes, best = group.votes(g, tally.named), nil
  for _, name in ipairs(cmsgpack.unpack(tally.leads)) do
    if votes[name] and (not best or votes[name] > votes[best]) then
      best = name
    end
  end
  return best
end

-- End the rebalance: dynamic members that did not join are taken out, and the next generation begins.
-- Source: GroupMetadataManager.completeClassicGroupJoin, ClassicGroup.initNextGeneration
function group.complete(g)
  local tally = group.tally(g, g.fields.leader)
  for _, id in ipairs(tally.gone) do
    group.remove(g, id)
  end
  if not tally.joined and #tally.ids > 0 then
    return group.postpone(g)
  end
  group.set(g, 'generation', g.fields.generation + 1)
  group.set(g, 'initial', nil)
  group.set(g, 'join_deadline', nil)
  if tally.joined then
    group.set(g, 'protocol', group.chosen_protocol(g, tally))
    group.set(g, 'leader', tally.joined)
    group.begin_generation(g, tally)
  else
    group.become_empty(g)
  end
end

function group.begin_generation(g, tally)
  for at, id in ipairs(tally.ids) do
    g.deadlines[id] = g.now + tally.sessions[at]
  end
  group.move(g, 'CompletingRebalance')
  group.set(g, 'rebalance_timeout', tally.longest)
  group.set(g, 'session_timeout', tally.shortest)
  group.set(g, 'synced', 0)
  group.set(g, 'sync_deadline', g.now + math.max(tally.longest, 1))
end

function group.become_empty(g)
  group.move(g, 'Empty')
  for _, name in ipairs({
    'protocol', 'leader', 'protocols', 'attempt', 'joined', 'synced', 'assigned', 'rebalance_timeout',
    'session_timeout', 'metadata_bytes',
  }) do
    group.set(g, name, nil)
  end
  group.set(g, 'expires_at', g.now + g.fields.retention)
end
