-- group_index: put a group into the index, at maxmemory as well
-- KEYS[1] index set  group ids
-- ARGV[1] group_id
-- Returns 1 where it was not in it before, else 0
function group.index(keys, args)
  if #keys ~= 1 or #args ~= 1 then
    error('korvet_group_index takes KEYS index ARGV group_id', 0)
  end
  return redis.call('SADD', keys[1], args[1]) -- first write
end
redis.register_function{
  function_name = 'korvet_group_index',
  callback = group.index,
  flags = { 'allow-oom' },
  description = 'put a group into the index, at maxmemory as well',
}
