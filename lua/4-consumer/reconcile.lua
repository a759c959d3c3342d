-- The steps of a member towards its target. First it gives up partitions. Then it gets each partition that its owner
-- has given up. Source: CurrentAssignmentBuilder

-- True if a member owns one of some partitions, by its own word. A member that names none may own them all.
function consumer.still_owns(owned, partitions)
  if not owned then
    return true
  end
  for partition in pairs(partitions) do
    if owned[partition] then
      return true
    end
  end
  return false
end

-- The ids of the topics that a member subscribes to, as a set; nil if its target has no other ones. A target that is
-- older than the group may have others. The topics of a regular expression are known only with a target.
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

-- The partitions of subscribed topics.
function consumer.subscribed_partitions(partitions, ids)
  if not ids then
    return partitions
  end
  local kept = {}
  for partition in pairs(partitions) do
    kept[partition] = ids[string.match(partition, '^%x+')]
  end
  return kept
end

-- The partitions that are missing in another set.
function consumer.without(partitions, others)
  local rest = {}
  for partition in pairs(partitions) do
    rest[partition] = not others[partition] or nil
  end
  return rest
end

-- A member in the same epoch that has to give up partitions by its rebalance timeout.
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
  local assigned = ids and consumer.partitions(member.owned) or {}
  local kept = consumer.subscribed_partitions(assigned, ids)
  local revoked = consumer.without(assigned, kept)
  if not next(revoked) then
    return member
  end
  for partition in pairs(consumer.partitions(member.revoking)) do
    revoked[partition] = true
  end
  if consumer.still_owns(owned, revoked) then
    return consumer.revoking(g, member, kept, revoked)
  end
  return consumer.with(member, { previous_epoch = member.epoch, owned = consumer.text(kept) })
end

-- The partitions of a member's target that are free or its own, and true if there are others.
function consumer.free(g, id, partitions)
  local free, has_others = {}, false
  local owners = consumer.owners(g, partitions)
  for partition in pairs(partitions) do
    if not owners[partition] or owners[partition] == id then
      free[partition] = true
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
  local target = consumer.subscribed_partitions(consumer.partitions(text), ids)
  local assigned = consumer.partitions(member.owned)
  local revoked = consumer.without(assigned, target)
  local kept = consumer.without(assigned, revoked)
  if next(revoked) and consumer.still_owns(owned, revoked) then
    return consumer.revoking(g, member, kept, revoked)
  end
  local free, has_others = consumer.free(g, id, consumer.without(target, kept))
  if not has_others and not ids then
    return consumer.arrived(g, member, text, 'STABLE')
  end
  for partition in pairs(free) do
    kept[partition] = true
  end
  return consumer.arrived(g, member, consumer.text(kept), has_others and 'UNRELEASED_PARTITIONS' or 'STABLE')
end

-- The member after its next step, or as it is if there is none. `owned` are the partitions that it says it owns, as a
-- set, nil if it does not say. Source: CurrentAssignmentBuilder.build
function consumer.step(g, id, member, owned)
  local is_unrevoked = member.state == 'UNREVOKED_PARTITIONS'
  if consumer.is_settled(g, member)
    or is_unrevoked and consumer.still_owns(owned, consumer.partitions(member.revoking)) then
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
