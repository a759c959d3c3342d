-- The end of a transaction in a partition, and what is remembered of producers.

-- The first offset of the open transactions without that of one producer, as text; nil where there is none.
function log.first_open_without(open_key, producer_id)
  local first = redis.call('ZRANGEBYSCORE', open_key, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 2)
  for at = 1, #first, 2 do
    if first[at] ~= producer_id then
      return value.integer(tonumber(first[at + 1]))
    end
  end
  return nil
end

-- A producer's state behind its marker: its batches are forgotten with their epoch.
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

-- Forget what is known of transactions of some producers that are forgotten themselves.
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

-- What a marker writes beside its batch.
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

-- log_mark: end a transaction in a partition by a control batch
-- Where an older transaction of the producer is open, of which its coordinator does not know, it is aborted by the
-- marker of an abort; before that of a commit one of an abort has to come, with the ordinal before its own.
-- KEYS[1] log          stream  record batches
-- KEYS[2] meta         hash    identity, offsets, epochs, totals
-- KEYS[3] producers    hash    producer id -> last batches
-- KEYS[4] open         zset    producer id -> first offset of its open transaction
-- KEYS[5] aborted      zset    `first last producer_id stable` by the last offset
-- KEYS[6] transactions hash    producer id -> `epoch closed_ordinal open_ordinal transactional_id`
-- ARGV[1] topic_id   ARGV[2] run_id   ARGV[3] producer_id   ARGV[4] producer_epoch of the marker   ARGV[5] ordinal
-- ARGV[6] decision   commit or abort
-- ARGV[7] size bytes   ARGV[8] max_timestamp ms   ARGV[9] crc   ARGV[10] batch of one record
-- Returns the text `code base_offset log_start leader_epoch`; base_offset is -1 where the transaction was ended before
-- and nothing is written; may be repeated
-- Codes: GONE, CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_EPOCH (a newer epoch has written here, and nothing is left to
-- be ended)
-- Source: UnifiedLog.appendAsLeader, ProducerAppendInfo.appendEndTxnMarker, ProducerStateManager.completeTxn
function log.mark(keys, args)
  local decision = args[6]
  if decision ~= 'commit' and decision ~= 'abort' then
    error('decision is neither commit nor abort: ' .. tostring(decision), 0)
  end
  local batch = { args[1], args[2], '1', args[7], args[8], args[9], args[3], args[4], '-1', args[10] }
  return log.append_batch(keys, batch, nil, {
    admit = admit_marker, write = write_marker, decision = decision, ordinal = value.number(args[5], 'ordinal'),
  })
end
redis.register_function{
  function_name = 'korvet_log_mark',
  callback = log.mark,
  flags = { 'allow-oom' },
  description = 'end a transaction in a partition by a control batch',
}

-- The greatest timestamp of the batch at an offset; -1 where it is gone.
function log.timestamp_at(log_key, base)
  local entry = redis.call('XRANGE', log_key, value.integer(base + 1) .. '-0', '+', 'COUNT', 1)[1]
  if not entry then
    return -1
  end
  local records, timestamp = log.times(entry)
  return log.next_offset(entry) - records == tonumber(base) and timestamp or -1
end

-- log_producers: what is remembered of the producers of a partition
-- KEYS[1] log          stream  record batches
-- KEYS[2] meta         hash    identity, offsets, epochs, totals
-- KEYS[3] producers    hash    producer id -> last batches
-- KEYS[4] open         zset    producer id -> first offset of its open transaction
-- KEYS[5] aborted      zset    `first last producer_id stable` by the last offset
-- KEYS[6] transactions hash    producer id -> `epoch closed_ordinal open_ordinal transactional_id`
-- ARGV[1] topic_id   ARGV[2] cursor   0 at first
-- Returns {code, cursor, [[producer_id, epoch, last_sequence, last_timestamp, first_offset of its open transaction,
-- ordinal of it, transactional_id], ...]}; call again with the cursor until it is '0'; what is not known is -1 or ''
-- Codes: GONE
-- Source: ProducerStateManager.activeProducers, UnifiedLog.activeProducers
function log.producers(keys, args)
  if redis.call('HGET', keys[2], 'topic_id') ~= args[1] then
    return { code.GONE, '0', {} }
  end
  local scanned = redis.call('HSCAN', keys[3], args[2], 'COUNT', log.STEP)
  local flat, producers = scanned[2], {}
  for at = 1, #flat, 2 do
    local epoch, last, base = string.match(flat[at + 1], '^(%-?%d+) %d+%*?|%-?%d+,(%-?%d+),(%d+)')
    if flat[at] ~= '' and epoch then
      local known = log.transaction_of(keys[6], flat[at])
      local first = tonumber(redis.call('ZSCORE', keys[4], flat[at]) or -1)
      producers[#producers + 1] = {
        tonumber(flat[at]), tonumber(epoch), tonumber(last), log.timestamp_at(keys[1], base), first,
        known.open, known.transactional_id,
      }
    end
  end
  return { code.NONE, scanned[1], producers }
end
redis.register_function{
  function_name = 'korvet_log_producers',
  callback = log.producers,
  flags = { 'no-writes', 'allow-oom' },
  description = 'what is remembered of the producers of a partition',
}
