-- The first call of a producer with a transactional id, and the one by which it goes on after an error.

-- Whether a producer that names its producer id and epoch may be the one that holds the id, or was until now.
-- Source: TransactionCoordinator.prepareInitProducerIdTransit
function transaction.is_holder(t, producer_id, epoch)
  return producer_id == -1 or producer_id == t.fields.producer_id
    or producer_id == t.fields.last_producer_id and transaction.is_exhausted(epoch)
end

-- What becomes of a producer that may hold the id: a code and fields to be set, none where the call is a repeated one.
-- The last epoch is no producer's own; who was fenced by it gets a new id, as who has the one before.
-- Source: TransactionMetadata.prepareIncrementProducerEpoch, prepareProducerIdRotation
function transaction.reinitialized(t, epoch, is_named, fresh_id)
  local known, last = t.fields.producer_epoch, t.fields.last_producer_epoch
  local is_fenced_last = known == transaction.LAST_EPOCH and epoch == last
  if is_named and epoch ~= known and not is_fenced_last then
    return epoch == last and code.NONE or code.PRODUCER_FENCED, {}
  end
  local fields = { last_producer_id = t.fields.producer_id, last_producer_epoch = is_named and epoch or -1 }
  if not transaction.is_exhausted(known) then
    fields.producer_epoch = known + 1
  elseif fresh_id == -1 then
    return code.FRESH_ID, {}
  else
    fields.producer_id, fields.producer_epoch = fresh_id, 0
  end
  return code.NONE, fields
end

-- What becomes of the first producer of an id, as transaction.reinitialized.
function transaction.initialized(fresh_id)
  if fresh_id == -1 then
    return code.FRESH_ID, {}
  end
  return code.NONE, { producer_id = fresh_id, producer_epoch = 0, last_producer_id = -1, last_producer_epoch = -1 }
end

-- txn_init: give the producer of a transactional id its producer id and epoch, and fence the one before
-- A transaction that is open is aborted: the answer is CONCURRENT_TRANSACTIONS until that is finished.
-- KEYS[1] id        hash  state of the transactional id
-- KEYS[2] deadlines zset  transactional id -> ms at which something of it is due
-- ARGV[1] transactional_id   ARGV[2] timeout ms of transactions
-- ARGV[3] producer_id or -1   ARGV[4] producer_epoch or -1   as the producer knows them
-- ARGV[5] fresh_id   a producer id that was never used, or -1 while none is wanted
-- Returns {code, producer_id, epoch}; with CONCURRENT_TRANSACTIONS {code, -1, -1, decision}: call again when that is
-- finished
-- Codes: FRESH_ID, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS
-- Source: TransactionCoordinator.handleInitProducerId
function transaction.init(keys, args)
  local transactional_id, timeout = args[1], value.number(args[2], 'timeout')
  local producer_id, epoch = value.number(args[3], 'producer_id'), value.number(args[4], 'producer_epoch')
  local fresh_id = value.number(args[5], 'fresh_id')
  local t = transaction.open(keys)
  local outcome, fields
  if not t.fields.state then
    outcome, fields = transaction.initialized(fresh_id)
  elseif not transaction.is_holder(t, producer_id, epoch) then
    return { code.PRODUCER_FENCED, -1, -1 }
  elseif t.fields.state == 'Ongoing' then
    transaction.fence(t, transactional_id)
    return { code.CONCURRENT_TRANSACTIONS, -1, -1, transaction.decision(t) }
  elseif transaction.is_prepared(t) then
    return { code.CONCURRENT_TRANSACTIONS, -1, -1, transaction.decision(t) }
  else
    outcome, fields = transaction.reinitialized(t, epoch, producer_id ~= -1, fresh_id)
  end
  if outcome ~= code.NONE then
    return { outcome, -1, -1 }
  end
  fields.timeout_ms, fields.started_ms, fields.marker_epoch, fields.next_producer_id = timeout, -1, -1, -1
  transaction.move(t, transactional_id, 'Empty', fields, t.now + timeout)
  return { code.NONE, t.fields.producer_id, t.fields.producer_epoch }
end
redis.register_function{
  function_name = 'korvet_txn_init',
  callback = transaction.init,
  description = 'give the producer of a transactional id its producer id and epoch, and fence the one before',
}
