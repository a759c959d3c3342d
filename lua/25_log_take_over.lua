-- log_take_over: begin a leader epoch where another server than before holds the log
-- It does not wait for an append, so that clients can be told of the epoch at once.
-- KEYS[1] log       stream  record batches
-- KEYS[2] meta      hash    identity, offsets, epochs, totals
-- KEYS[3] producers hash    producer id -> last batches
-- ARGV[1] topic_id   ARGV[2] run_id
-- Returns {code, leader_epoch}; may be repeated
-- Codes: GONE
-- Source: Partition.makeLeader
function log.take_over(keys, args)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'run_id', 'end', 'epoch', 'first_open')
  if meta[1] ~= args[1] then
    return { code.GONE, -1 }
  end
  local epoch = meta[4]
  if meta[2] ~= args[2] then
    local epochs
    epoch, epochs = log.new_history(keys[2], epoch, meta[3])
    log.begin_history(keys[2], epoch, epochs, args[2]) -- first write
    redis.call('SPUBLISH', keys[1], epoch .. ' ' .. meta[3] .. (meta[5] and ' ' .. meta[5] or ''))
  end
  return { code.NONE, tonumber(epoch) }
end
redis.register_function{
  function_name = 'korvet_log_take_over',
  callback = log.take_over,
  flags = { 'allow-oom' },
  description = 'begin a leader epoch where another server than before holds the log',
}
