-- group_admit: put a new group into the index, unless there are too many or no memory is left
-- KEYS[1] index set  group ids of its shard   KEYS[2..] shards set  group ids of the other shards
-- ARGV[1] group_id   ARGV[2] most   the groups that there may be
-- Returns code
-- Codes: POLICY_VIOLATION
function group.admit_id(keys, args)
  local asked, count = value.arguments(args, 'group_admit: group_id most:int'), 0
  for _, key in ipairs(keys) do
    count = count + redis.call('SCARD', key)
  end
  if count >= asked.most and redis.call('SISMEMBER', keys[1], asked.group_id) == 0 then
    return code.POLICY_VIOLATION
  end
  redis.call('SADD', keys[1], asked.group_id) -- first write
  return code.NONE
end
redis.register_function{
  function_name = 'korvet_group_admit',
  callback = group.admit_id,
  description = 'put a new group into the index, unless there are too many or no memory is left',
}

-- group_index: put a group into the index, at maxmemory as well
-- KEYS[1] index set  group ids
-- ARGV[1] group_id
-- Returns 1 if the group is new in it, else 0
function group.index(keys, args)
  return redis.call('SADD', keys[1], value.arguments(args, 'group_index: group_id').group_id) -- first write
end
redis.register_function{
  function_name = 'korvet_group_index',
  callback = group.index,
  flags = { 'allow-oom' },
  description = 'put a group into the index, at maxmemory as well',
}
