-- The epoch that begins when another server takes the log on. It counts seconds, so it is higher than any epoch of a
-- history that was lost with its last second. An increment could hand such an epoch out again.
function log.next_epoch(epoch)
  local seconds = math.floor(clock.now_us() / 1000000) - log.EPOCHS_SINCE_S
  return value.integer(math.max(epoch + 1, seconds))
end

-- The epochs text with a further epoch. As in LeaderEpochFileCache.assign, epochs that begin at or above its start
-- held nothing.
function log.with_epoch(epochs, epoch, start)
  local kept = {}
  for known_epoch, known_start in string.gmatch(epochs, '(%d+):(%d+)') do
    if tonumber(known_start) < tonumber(start) then
      kept[#kept + 1] = known_epoch .. ':' .. known_start
    end
  end
  kept[#kept + 1] = epoch .. ':' .. start
  return table.concat(kept, ',')
end

-- True if the epoch began on another server than this one, or on this one under another replication id.
function log.may_have_gone_back(run_id, present_run_id, replid)
  return run_id ~= present_run_id or replid ~= server.replid()
end

-- The epoch and the epochs text of a new history that begins at an offset; nothing is written.
function log.new_history(meta_key, epoch, start)
  local new_epoch = log.next_epoch(epoch)
  return new_epoch, log.with_epoch(redis.call('HGET', meta_key, 'epochs'), new_epoch, start)
end

function log.begin_history(meta_key, epoch, epochs, run_id)
  redis.call('HSET', meta_key, 'epoch', epoch, 'epochs', epochs, 'run_id', run_id, 'replid', server.replid())
end

-- The reply of an append. It is one text, because four integers would cost a tenth of the whole call.
function log.appended(outcome, base, start, epoch)
  return outcome .. ' ' .. base .. ' ' .. start .. ' ' .. epoch
end

-- The reply of an append that is refused or a duplicate. It removes the temporary key.
function log.not_appended(temporary_key, outcome, base, start, epoch)
  if temporary_key then
    redis.call('UNLINK', temporary_key)
  end
  return log.appended(outcome, base, start, epoch)
end

-- True if the batch under a temporary key is there in full. It fails on keys of the wrong type before any write.
function log.is_placeable(temporary_key, size, log_key)
  local length = redis.call('STRLEN', temporary_key)
  if length ~= 0 and length ~= tonumber(size) then
    error('the temporary key holds ' .. length .. ' bytes and not ' .. size, 0)
  end
  redis.call('XLEN', log_key)
  return length ~= 0
end

-- The totals text with a further batch.
function log.totals_with(totals, size, max_timestamp)
  local running_max, running_bytes, running_batches = string.match(totals, '^(%S+) (%d+) (%d+)$')
  local latest = max_timestamp
  if string.byte(latest) == log.MINUS then
    latest = value.integer(value.now_ms())
  end
  if latest ~= running_max and tonumber(latest) > tonumber(running_max) then
    running_max = latest
  end
  return running_max .. string.format(' %d %d', running_bytes + size, running_batches + 1)
end

-- Write a batch as an entry.
function log.write_batch(log_key, temporary_key, next_offset, args, totals, epoch)
  local call = redis.call
  local index = args[3] .. ' ' .. args[4] .. ' ' .. args[5] .. ' ' .. totals .. ' ' .. epoch .. ' ' .. args[6]
  if temporary_key then
    local placed_key = log.placed_key(log_key, next_offset)
    call('RENAME', temporary_key, placed_key) -- first write
    call('PERSIST', placed_key)
    call('XADD', log_key, next_offset, 'i', index)
  else
    call('XADD', log_key, next_offset, 'i', index, 'b', args[10]) -- first write
  end
end

-- Append a batch with the arguments of log_append. If a transaction is given, it judges the batch: its
-- admit(transaction, keys, args, leader_epoch, base) returns what producer.admit does, and then the new first_open.
-- Its write(transaction, keys, args, base) writes the transaction's own keys. If records are given (see
-- log.records_of), they are stored one by one instead of the batch.
function log.append_batch(keys, args, temporary_key, transaction, records)
  local call = redis.call
  local log_key, meta_key = keys[1], keys[2]
  local count, size, max_timestamp, producer_id = args[3], args[4], args[5], args[7]
  local meta = call('HMGET', meta_key, 'topic_id', 'run_id', 'start', 'end', 'epoch', 'totals', 'first_open', 'replid')
  if meta[1] ~= args[1] then
    return log.not_appended(temporary_key, code.GONE, -1, -1, -1)
  end
  local start, base, epoch = meta[3], meta[4], meta[5]
  local epochs
  if log.may_have_gone_back(meta[2], args[2], meta[8]) then
    epoch, epochs = log.new_history(meta_key, epoch, base)
  end

  local first_open = meta[7]
  local producer_state, is_new_producer
  if producer_id ~= '-1' then
    local outcome, first_base
    if transaction then
      outcome, first_base, producer_state, is_new_producer, first_open =
        transaction:admit(keys, args, epoch, base, first_open)
    else
      outcome, first_base, producer_state, is_new_producer = producer.admit(keys[3], args, epoch, base)
    end
    if not producer_state then
      return log.not_appended(temporary_key, outcome, first_base or -1, start, meta[5])
    end
  end
  if temporary_key and not log.is_placeable(temporary_key, size, log_key) then
    return log.appended(code.RESEND, -1, start, meta[5])
  end

  local next_offset = string.format('%d', base + count)
  local totals
  if records then
    totals = log.write_records(log_key, base, epoch, meta[6], records) -- first write
  else
    totals = log.totals_with(meta[6], size, max_timestamp)
    log.write_batch(log_key, temporary_key, next_offset, args, totals, epoch) -- first write
  end
  call('HSET', meta_key, 'end', next_offset, 'totals', totals)
  if epochs then
    log.begin_history(meta_key, epoch, epochs, args[2])
  end
  if producer_state then
    call('HSET', keys[3], producer_id, producer_state)
    if is_new_producer then
      producer.sweep(keys[3], next_offset)
    end
  end
  if transaction then
    transaction:write(keys, args, base)
  end
  local published = epoch .. ' ' .. next_offset
  if first_open then
    published = published .. ' ' .. first_open
  end
  call('SPUBLISH', log_key, published)
  return '0 ' .. base .. ' ' .. start .. ' ' .. epoch
end

korvet.define({
  name = 'log_append', by_position = true,
  description = 'append a record batch',
  keys = '@log   temporary? string a batch to be placed; it is gone after any answer but RESEND',
  args = [[
    topic_id   run_id   records   size bytes   max_timestamp ms   crc   producer_id or -1   producer_epoch
    base_sequence   batch or '' with KEYS[4]
    is_next? given if an earlier batch of the producer failed or is under way: no gap may pass
  ]],
  returns = [[the text `code base_offset log_start leader_epoch`, each -1 if unknown; a duplicate gets its first
    append's base_offset]],
  codes = 'GONE, RESEND, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE',
  source = 'UnifiedLog.append, UnifiedLog.analyzeAndValidateProducerState, ProducerAppendInfo.checkSequence',
}, function(keys, args)
  return log.append_batch(keys, args, keys[4])
end)
