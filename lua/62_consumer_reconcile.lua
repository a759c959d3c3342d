-- The steps of a member towards its target: what it is to give up goes first, and a partition is given to it when its
-- owner has given it up. Source: CurrentAssignmentBuilder

-- Whether a member that says what it owns says so of one of some places; who says nothing may own them all.
function consumer.still_owns(owned, places)
  if not owned then
    return true
  end
  for place in pairs(places) do
    if owned[place] then
      return true
    end
  end
  return false
end

-- The ids of the topics that a member subscribes to, as a set; nil where its target is known to be of these. A target
-- that is older than the group may hold others. What a regular expression stands for is only known with a target.
function consumer.subscribed_ids(g, member)
  if member.regex ~= '' or g.fields.target_epoch == g.fields.generation then
    return nil
  end
  local named, ids = {}, {}
  for _, name in ipairs(member.names) do
    named[name] = true
  end
  for name, topic_id in string.gmatch(redis.call('HGET', g.keys[1], 'topics') or '', '(%S+) (%x+) %d+') do
    ids[topic_id] = named[name]
  end
  return ids
end

-- Of some places those whose topics are subscribed to.
function consumer.subscribed_places(places, ids)
  if not ids then
    return places
  end
  local kept = {}
  for place in pairs(places) do
    kept[place] = ids[string.match(place, '^%x+')]
  end
  return kept
end

-- Those of some places that are not in another set.
function consumer.without(places, others)
  local rest = {}
  for place in pairs(places) do
    rest[place] = not others[place] or nil
  end
  return rest
end

-- A member in the same epoch that has to give up places by its rebalance timeout.
function consumer.revoking(g, member, kept, revoked)
  return consumer.with(member, {
    state = 'UNREVOKED_PARTITIONS', previous_epoch = member.epoch, owned = consumer.text(kept),
    revoking = consumer.text(revoked), revoke_by = not member.classic and g.now + member.rebalance_timeout,
  })
end

-- A member in the target's epoch.
function consumer.arrived(g, member, owned, state)
  return consumer.with(member, {
    state = state, epoch = g.fields.target_epoch, previous_epoch = member.epoch, owned = owned, revoking = '',
    revoke_by = false,
  })
end

-- A member that waits has its assignment without the topics that it no longer subscribes to.
-- Source: CurrentAssignmentBuilder.updateCurrentAssignment
function consumer.shrunk(g, member, owned)
  local ids = consumer.subscribed_ids(g, member)
  local assigned = ids and consumer.places(member.owned) or {}
  local kept = consumer.subscribed_places(assigned, ids)
  local revoked = consumer.without(assigned, kept)
  if not next(revoked) then
    return member
  end
  for place in pairs(consumer.places(member.revoking)) do
    revoked[place] = true
  end
  if consumer.still_owns(owned, revoked) then
    return consumer.revoking(g, member, kept, revoked)
  end
  return consumer.with(member, { previous_epoch = member.epoch, owned = consumer.text(kept) })
end

-- Of the places that a member is to get: those that are free or its own, and whether there are others.
function consumer.free(g, id, places)
  local free, has_others = {}, false
  local owners = consumer.owners(g, places)
  for place in pairs(places) do
    if not owners[place] or owners[place] == id then
      free[place] = true
    else
      has_others = true
    end
  end
  return free, has_others
end

-- The next assignment. Source: CurrentAssignmentBuilder.computeNextAssignment
function consumer.next_assignment(g, id, member, owned)
  local text = consumer.target(g, id)
  local ids = consumer.subscribed_ids(g, member)
  if not ids and text == member.owned then
    return consumer.arrived(g, member, text, 'STABLE')
  end
  local target = consumer.subscribed_places(consumer.places(text), ids)
  local assigned = consumer.places(member.owned)
  local revoked = consumer.without(assigned, target)
  local kept = consumer.without(assigned, revoked)
  if next(revoked) and consumer.still_owns(owned, revoked) then
    return consumer.revoking(g, member, kept, revoked)
  end
  local free, has_others = consumer.free(g, id, consumer.without(target, kept))
  if not has_others and not ids then
    return consumer.arrived(g, member, text, 'STABLE')
  end
  for place in pairs(free) do
    kept[place] = true
  end
  return consumer.arrived(g, member, consumer.text(kept), has_others and 'UNRELEASED_PARTITIONS' or 'STABLE')
end

-- The member after its next step, or as it is where there is none to make; owned is what it says that it owns, as a
-- set, nil where it does not say. Source: CurrentAssignmentBuilder.build
function consumer.step(g, id, member, owned)
  if consumer.is_settled(g, member) then
    return consumer.shrunk(g, member, owned)
  elseif member.state == 'UNREVOKED_PARTITIONS' and consumer.still_owns(owned, consumer.places(member.revoking)) then
    return consumer.shrunk(g, member, owned)
  end
  return consumer.next_assignment(g, id, member, owned)
end

-- Move a member towards its target. Source: GroupMetadataManager.maybeReconcile
function consumer.reconcile(g, id, owned)
  local member = group.member(g, id)
  local after = consumer.step(g, id, member, owned)
  if after ~= member then
    consumer.own(g, id, member, after)
    consumer.put(g, id, after)
  end
  return after
end
