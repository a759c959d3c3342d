-- group_describe: everything about a group and its members, as it is by now
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- Returns {code}, or {0, id, locator, state, generation, protocol_type, protocol, leader, [member_id, instance_id,
-- client_id, client_host, metadata, assignment, ...]}; what is not known is ''
-- Codes: GROUP_ID_NOT_FOUND
-- Source: ClassicGroup.asDescribedGroup, ClassicGroupMember.describe
function group.describe(keys)
  local g = group.open(keys)
  group.advance(g)
  if not group.exists(g) then
    return { code.GROUP_ID_NOT_FOUND }
  end
  local fields, members, is_stable = g.fields, {}, group.is(g, 'Stable')
  for _, id in ipairs(group.member_ids(g)) do
    local member = g.members[id]
    for _, part in ipairs({
      id, member.instance_id, member.client_id, member.client_host, is_stable and group.metadata(g, member) or '',
      group.assignment(g, member),
    }) do
      members[#members + 1] = part
    end
  end
  return {
    code.NONE, fields.id, fields.locator, fields.state, fields.generation, fields.protocol_type or '',
    fields.protocol or '', fields.leader or '', members,
  }
end
redis.register_function{
  function_name = 'korvet_group_describe',
  callback = group.describe,
  flags = { 'no-writes', 'allow-oom' },
  description = 'everything about a group and its members, as it is by now',
}

-- group_state: a group's state without its members, as it is by now
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- Returns {code}, or {0, state, generation, protocol_type or '', members}
-- Codes: GROUP_ID_NOT_FOUND
-- Source: ClassicGroup.asListedGroup
function group.state(keys)
  local g = group.open(keys)
  group.advance(g)
  if not group.exists(g) then
    return { code.GROUP_ID_NOT_FOUND }
  end
  return { code.NONE, g.fields.state, g.fields.generation, g.fields.protocol_type or '', g.size }
end
redis.register_function{
  function_name = 'korvet_group_state',
  callback = group.state,
  flags = { 'no-writes', 'allow-oom' },
  description = 'a group\'s state without its members, as it is by now',
}

-- group_delete: remove a group without members, and its offsets
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- Returns code
-- Codes: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP
-- Source: ClassicGroup.validateDeleteGroup, GroupCoordinatorShard.deleteGroups
function group.delete(keys)
  local g = group.open(keys)
  group.advance(g)
  if group.exists(g) and not group.is(g, 'Empty') then
    group.save(g)
    return code.NON_EMPTY_GROUP
  end
  redis.call('UNLINK', unpack(keys)) -- first write
  return group.exists(g) and code.NONE or code.GROUP_ID_NOT_FOUND
end
redis.register_function{
  function_name = 'korvet_group_delete',
  callback = group.delete,
  flags = { 'allow-oom' },
  description = 'remove a group without members, and its offsets',
}
