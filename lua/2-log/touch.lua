-- log_touch: write a partition's topic id anew, so that WAIT has a write of this connection to wait for
-- WAIT answers for the last write of its own connection. Writes of other connections before this call are older, so
-- replicas that have this write have those as well.
-- KEYS[1] meta      hash    identity, offsets, epochs, totals
-- ARGV[1] topic_id
-- Returns code; may be repeated
-- Codes: GONE
-- Source: ReplicaManager.maybeAddDelayedProduce
function log.touch(keys, args)
  if redis.call('HGET', keys[1], 'topic_id') ~= args[1] then
    return code.GONE
  end
  redis.call('HSET', keys[1], 'topic_id', args[1]) -- first write
  return code.NONE
end
redis.register_function{
  function_name = 'korvet_log_touch',
  callback = log.touch,
  flags = { 'allow-oom' },
  description = 'write a partition\'s topic id anew, so that WAIT has a write of this connection to wait for',
}
