-- The offset in an entry's id, a number.
function log.id_offset(entry_id)
  return tonumber(string.match(entry_id, '^%d+'))
end

-- True if an entry lies above an offset.
function log.above(entry, offset)
  return entry[1] ~= value.integer(offset) .. '-0' and log.id_offset(entry[1]) >= offset
end

-- Let a stream end where the log does, unless entries lie above that. With is_foreign the deleted entry never was the
-- log's, so Redis must not count a gap there for the lags of Redis groups.
function log.end_at(log_key, log_end, batches, is_foreign)
  local stream = value.pairs(redis.call('XINFO', 'STREAM', log_key))
  local newest = redis.call('XREVRANGE', log_key, '+', '-', 'COUNT', 1)[1]
  local last_id = stream['last-generated-id']
  if log.id_offset(last_id) < log_end or newest and log.above(newest, log_end) then
    return
  end
  local added = value.integer(math.max(batches, stream.length))
  if is_foreign then
    -- Redis takes no 0-0 for this.
    redis.call('XSETID', log_key, last_id, 'ENTRIESADDED', added, 'MAXDELETEDID', '0-1')
  end
  redis.call('XSETID', log_key, value.integer(log_end) .. '-' .. (log_end == 0 and '1' or '0'), 'ENTRIESADDED', added)
end

-- The first offset of the open transactions and the last one of the aborted transactions; nil if there are none.
function log.transactions_of(keys)
  local open = keys[4] and redis.call('ZRANGEBYSCORE', keys[4], 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1) or {}
  local aborted = keys[5] and redis.call('ZRANGE', keys[5], -1, -1, 'WITHSCORES') or {}
  return open[2], aborted[1] ~= '' and aborted[2] or nil
end

-- The epochs text of the entries of a log, as far as its first and its last one show it.
function log.epochs_of(first, last, start)
  local first_epoch, last_epoch = string.match(first[2][2], '(%d+) %S+$'), string.match(last[2][2], '(%d+) %S+$')
  local epochs = first_epoch .. ':' .. start
  if last_epoch ~= first_epoch then
    epochs = log.with_epoch(epochs, last_epoch, value.integer(log.id_offset(last[1]) - log.times(last)))
  end
  return last_epoch, epochs
end

-- Make a lost meta hash of a partition from its log and its segments. Without a run id the next use begins a leader
-- epoch. Returns GONE if the segments are another topic's. The epochs begin where the log does: those of the segments
-- alone are lost.
function log.rebuild_meta(keys, topic_id, tier_key)
  local log_key, meta_key = keys[1], keys[2]
  local noted_start = tonumber(redis.call('ZSCORE', tier_key, topic_id) or nil)
  if not noted_start and redis.call('EXISTS', tier_key) == 1 then
    return code.GONE
  end
  local first = redis.call('XRANGE', log_key, '-', '+', 'COUNT', 1)[1]
  local last = redis.call('XREVRANGE', log_key, '+', '-', 'COUNT', 1)[1]
  local stream = value.pairs(redis.call('XINFO', 'STREAM', log_key))
  local log_end = value.integer(log.id_offset(stream['last-generated-id']))
  local start, epoch, epochs, totals = log_end, '0', '0:' .. log_end, '-1 0 0'
  if last then
    start = value.integer(log.id_offset(first[1]) - log.times(first))
    epoch, epochs = log.epochs_of(first, last, start)
    log.times(last)
    totals = string.match(last[2][2], '^%d+ %d+ %-?%d+ (%-?%d+ %d+ %d+) ')
  end
  local first_open, last_aborted = log.transactions_of(keys)
  redis.call('HLEN', keys[3])
  redis.call('HLEN', keys[6] or keys[3])
  local tiered, token = {}, nil
  if noted_start then
    local running
    tiered, token, running = tier.rebuilt(tier_key, -1 - noted_start, tonumber(start))
    totals = not last and running and running .. ' 0' or totals
  end
  redis.call(
    'HSET', meta_key, 'topic_id', topic_id, 'run_id', '', 'replid', server.replid(), 'start', start, 'end', log_end,
    'epoch', epoch, 'epochs', epochs, 'totals', totals
  ) -- first write
  for field, offset in pairs({ first_open = first_open, last_aborted = last_aborted }) do
    redis.call('HSET', meta_key, field, value.integer(tonumber(offset)))
  end
  for field, offset in pairs(tiered) do
    redis.call('HSET', meta_key, field, value.integer(offset), 'cleaned', tier.FENCE, 'tier', token or '')
  end
  redis.call('HSETNX', keys[3], '', '0 0 0 0')
  if keys[4] then
    log.make_transaction_keys(keys)
  end
  return code.NONE
end

korvet.define({
  name = 'log_repair', flags = { 'allow-oom' },
  description = 'remove an entry that cannot be read, for an operator',
  keys = 'log stream record batches   meta hash identity, offsets, epochs, totals',
  args = "entry_id as the line in a front-end's log names it",
  returns = '{code, removed}; removed is 1 if there was such an entry; may be repeated',
  codes = 'GONE',
  notes = [[An entry above the log's end keeps everybody from appending. So the stream's last id becomes the log's end
    again.]],
}, function(keys, params)
  local log_key, entry_id = keys[1], params.entry_id
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'end', 'totals')
  local log_end, batches = tonumber(meta[2] or nil), string.match(meta[3] or '', '(%d+)$')
  if not meta[1] then
    return { code.GONE, 0 }
  elseif not log_end or not batches or not string.find(entry_id, '^%d+%-%d+$') then
    error('the meta hash is not a partition\'s, or this is not an entry\'s id: ' .. entry_id, 0)
  end
  local removed = redis.call('XDEL', log_key, entry_id) -- first write
  if redis.call('EXISTS', log_key) == 1 then
    log.end_at(log_key, log_end, tonumber(batches), log.id_offset(entry_id) > log_end)
  end
  redis.call('SPUBLISH', log_key, '-1 -1')
  return { code.NONE, removed }
end)
