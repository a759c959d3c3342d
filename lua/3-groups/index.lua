korvet.define({
  name = 'group_admit',
  description = 'put a new group into the index, unless there are too many or no memory is left',
  keys = 'index set group ids of its shard   shards* set group ids of the other shards',
  args = 'group_id   most:int the groups that there may be',
  returns = 'code',
  codes = 'POLICY_VIOLATION',
}, function(keys, params)
  local count = 0
  for _, key in ipairs(keys) do
    count = count + redis.call('SCARD', key)
  end
  if count >= params.most and redis.call('SISMEMBER', keys[1], params.group_id) == 0 then
    return code.POLICY_VIOLATION
  end
  redis.call('SADD', keys[1], params.group_id) -- first write
  return code.NONE
end)

korvet.define({
  name = 'group_index', flags = { 'allow-oom' },
  description = 'put a group into the index, at maxmemory as well',
  keys = 'index set group ids',
  args = 'group_id',
  returns = '1 if the group is new in it, else 0',
}, function(keys, params)
  return redis.call('SADD', keys[1], params.group_id) -- first write
end)
