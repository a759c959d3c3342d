korvet.define({
  name = 'log_take_over', flags = { 'allow-oom' },
  description = "begin a leader epoch if the log's history may have gone back since the last one began",
  keys = '@log',
  args = 'topic_id   run_id',
  returns = '{code, leader_epoch, replication id}; may be repeated',
  codes = 'GONE',
  source = 'Partition.makeLeader',
  notes = [[It may have if another server holds the log now, or if the same one writes under another replication id.
    Clients learn of the epoch at once, before anybody appends.]],
}, function(keys, params)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'run_id', 'end', 'epoch', 'first_open', 'replid')
  if meta[1] ~= params.topic_id then
    return { code.GONE, -1, '' }
  end
  local epoch = meta[4]
  local replid = server.ask_replid()
  if meta[2] ~= params.run_id or meta[6] ~= replid then
    local epochs
    epoch, epochs = log.new_history(keys[2], epoch, meta[3])
    log.begin_history(keys[2], epoch, epochs, params.run_id) -- first write
    redis.call('SPUBLISH', keys[1], epoch .. ' ' .. meta[3] .. (meta[5] and ' ' .. meta[5] or ''))
  end
  return { code.NONE, tonumber(epoch), replid }
end)
