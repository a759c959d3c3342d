-- Transactions in a partition. Source: ProducerAppendInfo, ProducerStateManager, UnifiedLog.
--
-- The open zset: producer id -> first offset of its open transaction. The aborted zset: `first last producer_id stable`
-- by the last offset, which is the marker's; stable is the last stable offset after it. The transactions hash:
-- producer id -> `epoch closed_ordinal open_ordinal transactional_id`; an ordinal is -1 if there is none. Each of the
-- three keys has a member with the empty name, below all others. In the hash it is the cursor of the search for
-- producers to forget.
--
-- Each transaction has an ordinal, which grows from one to the next. It exposes a late append or marker: with the
-- ordinal of a transaction that was closed here, it changes nothing, whatever is open by now.

-- A producer's transactions: {closed, open, transactional_id}, ordinals as numbers.
function log.transaction_of(transactions_key, producer_id)
  local entry = redis.call('HGET', transactions_key, producer_id)
  if not entry then
    return { closed = -1, open = -1, transactional_id = '' }
  end
  local closed, open, transactional_id = string.match(entry, '^%-?%d+ (%-?%d+) (%-?%d+) (.*)$')
  if not closed then
    value.unreadable(transactions_key, producer_id)
  end
  return { closed = tonumber(closed), open = tonumber(open), transactional_id = transactional_id }
end

function log.transaction_entry(epoch, known)
  -- Not by string.format, whose %s ends at a NUL.
  return epoch .. string.format(' %d %d ', known.closed, known.open) .. known.transactional_id
end

-- The code that refuses a batch of this ordinal, or nil if its transaction is open or may begin.
function log.ordinal_refusal(known, ordinal)
  if ordinal <= known.closed or ordinal < known.open then
    return code.INVALID_TXN_STATE
  elseif known.open >= 0 and known.open < ordinal then
    return code.CONCURRENT_TRANSACTIONS
  end
  return nil
end

-- Judge the first batch of an unknown producer.
local function begin_unknown(batch, first)
  local is_refused = batch.is_next or batch.joins and first ~= 0
  return is_refused and code.OUT_OF_ORDER_SEQUENCE_NUMBER or code.NONE
end

-- The outcome of a batch as log.append_batch wants it, by its producer's state and its transaction.
-- It answers VERIFY before it looks at the sequence, because the batch before this one may be on its way to be verified
-- as well. No gap may pass in an open transaction, even if history went back: the commit would lack the lost records,
-- and the producer can abort.
local function admit_transactional(batch, keys, args, leader_epoch, base, first_open)
  local producer_id, epoch, first = args[7], args[8], tonumber(args[9])
  local last = (first + args[3] - 1) % producer.SEQUENCES
  local state = redis.call('HGET', keys[3], producer_id)
  local is_open = state and string.match(state, '^(%-?%d+) %d+%*') == epoch
  local outcome, first_base, kept
  if state then
    outcome, first_base, kept = producer.judge(state, epoch, first, last, leader_epoch, batch.is_next or is_open)
  else
    outcome, kept = begin_unknown(batch, first), ''
  end
  if not outcome then
    value.unreadable(keys[3], producer_id)
  elseif outcome == code.INVALID_PRODUCER_EPOCH or first_base then
    return outcome, first_base
  end
  if batch.ordinal then
    batch.known = log.transaction_of(keys[6], producer_id)
    redis.call('ZCARD', keys[4])
    redis.call('ZCARD', keys[5])
    local refusal = log.ordinal_refusal(batch.known, batch.ordinal)
    if refusal then
      return refusal
    end
  elseif not is_open then
    return code.VERIFY
  end
  if outcome ~= code.NONE then
    return outcome
  end
  batch.opens = batch.known and batch.known.open < 0
  batch.is_first_open = batch.opens and not first_open
  local after = string.format('%s %s*|%d,%d,%s%s', epoch, leader_epoch, first, last, base, kept)
  return outcome, nil, after, not state, first_open or base
end

-- Write the transaction's keys if the batch opens one.
local function write_transactional(batch, keys, args, base)
  if not batch.opens then
    return
  end
  local known = batch.known
  known.open, known.transactional_id = batch.ordinal, batch.transactional_id
  log.make_transaction_keys(keys)
  redis.call('ZADD', keys[4], base, args[7])
  redis.call('HSET', keys[6], args[7], log.transaction_entry(args[8], known))
  if batch.is_first_open then
    redis.call('HSET', keys[2], 'first_open', base)
  end
end

-- The transaction in an append's arguments, as log.append_batch wants it.
function log.transaction_with(args)
  return {
    admit = admit_transactional,
    write = write_transactional,
    is_next = args[11] ~= '' or nil,
    ordinal = args[12] ~= '' and value.number(args[12], 'ordinal') or nil,
    transactional_id = args[13],
    joins = args[14] == '1',
  }
end

korvet.define({
  name = 'log_append_transactional', by_position = true,
  description = 'append a record batch of a transaction',
  keys = '@log   @open   temporary? string a batch to be placed; it is gone after any answer but RESEND',
  args = [[
    topic_id   run_id   records   size bytes   max_timestamp ms   crc   producer_id   producer_epoch   base_sequence
    batch or '' with KEYS[7]
    is_next 1 if an earlier batch of the producer failed or is under way, so that no gap may pass, else ''
    ordinal of the transaction if the coordinator was asked, else ''   transactional_id
    joins? 1 if partitions come into transactions by their batches. Each transaction then has an epoch of its own, so an
      unknown producer begins with sequence 0, or batches of the transaction were lost
  ]],
  returns = 'the text `code base_offset log_start leader_epoch`, as log_append',
  codes = [[GONE, RESEND, VERIFY, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING (no
    producer id), INVALID_TXN_STATE (that transaction was ended here), CONCURRENT_TRANSACTIONS (an older one is open
    that its coordinator does not know: abort it first)]],
  source = 'UnifiedLog.analyzeAndValidateProducerState, ProducerAppendInfo.appendDataBatch, checkSequence',
}, function(keys, args)
  if value.number(args[7], 'producer_id') < 0 then
    return log.not_appended(keys[7], code.INVALID_PRODUCER_ID_MAPPING, -1, -1, -1)
  end
  return log.append_batch(keys, args, keys[7], log.transaction_with(args))
end)
