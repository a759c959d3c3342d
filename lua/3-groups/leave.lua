-- Take out one member of a LeaveGroup; an administrator names only the instance id.
function group.leave_one(g, id, instance_id)
  if id == '' then
    id = instance_id ~= '' and group.static_member(g, instance_id)
    if not id then
      return code.UNKNOWN_MEMBER_ID
    end
  elseif group.is_pending(g, id) then
    group.remove_pending(g, id)
    return code.NONE
  end
  local refusal = group.refusal(g, id, instance_id)
  if not refusal then
    group.remove(g, id)
  end
  return refusal or code.NONE
end

-- True if a call is late, and could take out a later member, because it names one by its instance id alone.
function group.leave_is_late(members, outages)
  for at = 1, #members, 2 do
    if members[at] == '' and members[at + 1] ~= '' then
      return group.is_late(outages)
    end
  end
  return false
end

korvet.define({
  name = 'group_leave', flags = { 'allow-oom' },
  description = 'take members out of a group',
  keys = '@group',
  args = "outages   members*2<=400 member_id or '', instance_id or '', ...",
  returns = '[code, ...], one for each',
  codes = 'LATE (of the first and all others), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID',
  source = 'GroupMetadataManager.classicGroupLeaveToClassicGroup',
}, function(keys, params)
  local members = params.members
  if group.leave_is_late(members, params.outages) then
    local codes = {}
    for at = 1, #members / 2 do
      codes[at] = code.LATE
    end
    return codes
  end
  local g = group.open(keys)
  group.advance(g, params.outages)
  if group.is_consumer(g) then
    return group.consumer.leave_classic(g, members)
  end
  local codes, has_left = {}, false
  for at = 1, #members, 2 do
    local outcome = code.UNKNOWN_MEMBER_ID
    if group.exists(g) then
      outcome = group.leave_one(g, members[at], members[at + 1])
    end
    codes[#codes + 1] = outcome
    has_left = has_left or outcome == code.NONE
  end
  if has_left then
    group.rebalance_without(g)
    group.complete_unless_initial(g)
  end
  group.save(g)
  return codes
end)
