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

-- group_leave: take members out of a group
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] outages: `served_until from-to ...` or ''
-- ARGV[2..] members: member_id or '', instance_id or '', ...
-- Returns [code, ...], one for each
-- Codes: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID
-- Source: GroupMetadataManager.classicGroupLeaveToClassicGroup
function group.leave(keys, args)
  group.expect(keys, args, 'leave', 1, 2)
  local g = group.open(keys)
  group.advance(g, args[1])
  if group.is_consumer(g) then
    return group.consumer.leave_classic(g, args)
  end
  local codes, has_left = {}, false
  for at = 2, #args - 1, 2 do
    local outcome = code.UNKNOWN_MEMBER_ID
    if group.exists(g) then
      outcome = group.leave_one(g, args[at], args[at + 1])
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
end
redis.register_function{
  function_name = 'korvet_group_leave',
  callback = group.leave,
  flags = { 'allow-oom' },
  description = 'take members out of a group',
}
