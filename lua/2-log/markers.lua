-- The end of a transaction in a partition, and the listing of producers.

-- The first offset of the open transactions of all producers but one, as text; nil if none is open.
function log.first_open_without(open_key, producer_id)
  local first = redis.call('ZRANGEBYSCORE', open_key, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 2)
  for at = 1, #first, 2 do
    if first[at] ~= producer_id then
      return value.integer(tonumber(first[at + 1]))
    end
  end
  return nil
end

-- A producer's state after its marker; it forgets the batches of a former epoch.
function producer.marked(state, epoch, leader_epoch, base)
  local known_epoch = state and string.match(state, '^%-?%d+')
  if known_epoch and tonumber(known_epoch) >= tonumber(epoch) then
    return (string.gsub(state, '%*', '', 1))
  end
  return epoch .. ' ' .. leader_epoch .. '|-1,-1,' .. base
end

-- The outcome of a marker as log.append_batch wants it.
local function admit_marker(marker, keys, args, leader_epoch, base)
  local producer_id, epoch, ordinal = args[7], args[8], marker.ordinal
  local known = log.transaction_of(keys[6], producer_id)
  local state = redis.call('HGET', keys[3], producer_id)
  marker.first = tonumber(redis.call('ZSCORE', keys[4], producer_id) or nil)
  redis.call('ZCARD', keys[5])
  if ordinal <= known.closed or ordinal < known.open then
    return code.NONE
  elseif marker.decision == 'commit' and known.open >= 0 and known.open < ordinal then
    return code.CONCURRENT_TRANSACTIONS
  elseif state and known.open < 0 and tonumber(epoch) < tonumber(string.match(state, '^%-?%d+')) then
    return code.INVALID_PRODUCER_EPOCH
  end
  marker.is_new = known.closed < 0
  marker.known = { closed = ordinal, open = -1, transactional_id = known.transactional_id }
  marker.first_open = log.first_open_without(keys[4], producer_id)
  return code.NONE, nil, producer.marked(state, epoch, leader_epoch, base), not state, marker.first_open
end

-- Forget the transactions of some forgotten producers.
function log.sweep_transactions(keys, count)
  local scanned = redis.call('HSCAN', keys[6], redis.call('HGET', keys[6], ''), 'COUNT', count)
  local notes = scanned[2]
  redis.call('HSET', keys[6], '', scanned[1])
  for at = 1, #notes, 2 do
    local is_open = string.match(notes[at + 1], '^%-?%d+ %-?%d+ %d')
    if notes[at] ~= '' and not is_open and not redis.call('HGET', keys[3], notes[at]) then
      redis.call('HDEL', keys[6], notes[at])
    end
  end
end

-- Write the transaction's keys for a marker.
local function write_marker(marker, keys, args, base)
  local producer_id = args[7]
  log.make_transaction_keys(keys)
  redis.call('ZREM', keys[4], producer_id)
  redis.call('HSET', keys[6], producer_id, log.transaction_entry(args[8], marker.known))
  if marker.first_open then
    redis.call('HSET', keys[2], 'first_open', marker.first_open)
  else
    redis.call('HDEL', keys[2], 'first_open')
  end
  if marker.first and marker.decision == 'abort' then
    local stable = marker.first_open or value.integer(base + 1)
    local aborted = string.format('%d %s %s %s', marker.first, base, producer_id, stable)
    redis.call('ZADD', keys[5], base, aborted)
    redis.call('HSET', keys[2], 'last_aborted', base)
  end
  if marker.is_new then
    log.sweep_transactions(keys, producer.SWEEP)
  end
end

korvet.define({
  name = 'log_mark', flags = { 'allow-oom' },
  description = 'end a transaction in a partition by a control batch',
  keys = '@log   @open',
  args = [[
    topic_id   run_id   producer_id   producer_epoch of the marker   ordinal:int   decision:commit|abort   size bytes
    max_timestamp ms   crc   batch of one record
  ]],
  returns = [[the text `code base_offset log_start leader_epoch`; base_offset is -1 if the transaction was ended before
    and nothing is written; may be repeated]],
  codes = [[GONE, CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_EPOCH (a newer epoch wrote here, and no transaction is
    open)]],
  source = 'UnifiedLog.appendAsLeader, ProducerAppendInfo.appendEndTxnMarker, ProducerStateManager.completeTxn',
  notes = [[An older transaction of the producer may be open that its coordinator does not know. The marker of an abort
    ends it. Before the marker of a commit, one of an abort has to come, with the ordinal before its own.]],
}, function(keys, params)
  local batch = {
    params.topic_id, params.run_id, '1', params.size, params.max_timestamp, params.crc, params.producer_id,
    params.producer_epoch, '-1', params.batch,
  }
  return log.append_batch(keys, batch, nil, {
    admit = admit_marker, write = write_marker, decision = params.decision, ordinal = params.ordinal,
  })
end)

-- The greatest timestamp of the batch at an offset; -1 if it is gone.
function log.timestamp_at(log_key, base)
  local entry = redis.call('XRANGE', log_key, value.integer(base + 1) .. '-0', '+', 'COUNT', 1)[1]
  if not entry then
    return -1
  end
  local records, timestamp = log.times(entry)
  return log.next_offset(entry) - records == tonumber(base) and timestamp or -1
end

korvet.define({
  name = 'log_check', flags = { 'no-writes', 'allow-oom' },
  description = 'whether a partition still holds the records that an open transaction wrote to it',
  keys = [[
    meta hash identity, offsets, epochs, totals   open zset producer id -> first offset of its open transaction
    transactions hash producer id -> `epoch closed_ordinal open_ordinal transactional_id`
  ]],
  args = [[
    topic_id   joined the replication id under which the partition came into the transaction, or ''   producer_id
    ordinal:int of the transaction
  ]],
  returns = 'code',
  codes = 'GONE, TRANSACTION_ABORTABLE (history changed since, or an older transaction of the producer is open)',
}, function(keys, params)
  local replid = server.ask_replid()
  local meta = redis.call('HMGET', keys[1], 'topic_id', 'replid', 'epochs')
  if meta[1] ~= params.topic_id then
    return code.GONE
  elseif params.joined ~= '' and params.joined ~= replid then
    return code.TRANSACTION_ABORTABLE
  end
  local known = log.transaction_of(keys[3], params.producer_id)
  if known.open < 0 then
    return code.NONE
  end
  local first = tonumber(redis.call('ZSCORE', keys[2], params.producer_id) or -1)
  local epoch_start = tonumber(string.match(meta[3], '(%d+)$'))
  local is_whole = known.open == params.ordinal and meta[2] == replid and epoch_start <= first
  return is_whole and code.NONE or code.TRANSACTION_ABORTABLE
end)

-- A producer's state, as log_producers returns it; nil if it cannot be read.
function log.producer_of(keys, producer_id)
  local state = redis.call('HGET', keys[3], producer_id)
  local epoch, last, base = string.match(state or '', '^(%-?%d+) %d+%*?|%-?%d+,(%-?%d+),(%d+)')
  if producer_id == '' or not epoch then
    return nil
  end
  local known = log.transaction_of(keys[6], producer_id)
  local first = tonumber(redis.call('ZSCORE', keys[4], producer_id) or -1)
  return {
    tonumber(producer_id), tonumber(epoch), tonumber(last), log.timestamp_at(keys[1], base), first, known.open,
    known.transactional_id,
  }
end

korvet.define({
  name = 'log_producers', flags = { 'no-writes', 'allow-oom' },
  description = "the state of a partition's producers",
  keys = '@log   @open',
  args = [[
    topic_id   cursor 0 at first   producer_id? of the only producer to return, or ''
    only_open? given to leave out producers without an open transaction
  ]],
  returns = [=[{code, cursor, [[producer_id, epoch, last_sequence, last_timestamp, first_offset of its open
    transaction, ordinal of it, transactional_id], ...]}; call again with the cursor until it is '0'; an unknown
    value is -1 or '']=],
  bound = '100 producers a call',
  codes = 'GONE',
  source = 'ProducerStateManager.activeProducers, UnifiedLog.activeProducers',
}, function(keys, params)
  if redis.call('HGET', keys[2], 'topic_id') ~= params.topic_id then
    return { code.GONE, '0', {} }
  end
  local scanned = { '0', { params.producer_id, '' } }
  if (params.producer_id or '') == '' and params.only_open then
    -- By the first offsets of their transactions, which differ; the cursor is the next one.
    local open = redis.call('ZRANGEBYSCORE', keys[4], params.cursor, '+inf', 'WITHSCORES', 'LIMIT', 0, log.STEP)
    scanned = { #open == 2 * log.STEP and value.integer(open[#open] + 1) or '0', open }
  elseif (params.producer_id or '') == '' then
    scanned = redis.call('HSCAN', keys[3], params.cursor, 'COUNT', log.STEP)
  end
  local flat, producers = scanned[2], {}
  for at = 1, #flat, 2 do
    producers[#producers + 1] = log.producer_of(keys, flat[at])
  end
  return { code.NONE, scanned[1], producers }
end)
