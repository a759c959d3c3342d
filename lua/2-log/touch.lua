korvet.define({
  name = 'log_touch', flags = { 'allow-oom' }, by_position = true,
  description = "write a partition's topic id anew, so that WAIT has a write of this connection to wait for",
  keys = 'meta hash identity, offsets, epochs, totals',
  args = 'topic_id',
  returns = 'code; may be repeated',
  codes = 'GONE',
  source = 'ReplicaManager.maybeAddDelayedProduce',
  notes = [[WAIT answers for the last write of its own connection. Writes of other connections before this call are
    older, so replicas that have this write have those as well.]],
}, function(keys, args)
  if redis.call('HGET', keys[1], 'topic_id') ~= args[1] then
    return code.GONE
  end
  redis.call('HSET', keys[1], 'topic_id', args[1]) -- first write
  return code.NONE
end)
