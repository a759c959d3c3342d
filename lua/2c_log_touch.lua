-- log_touch: write to a partition what it holds already, so that WAIT has a write of this connection to wait for
-- WAIT answers for the last write of its own connection. What other connections wrote before this call is older, so
-- replicas that have it have that as well.
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
  description = 'write to a partition what it holds already, so that WAIT has a write of this connection to wait for',
}
