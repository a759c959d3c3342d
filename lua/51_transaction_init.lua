-- The first call of a producer with a transactional id, and the one by which it goes on after an error.

-- Whether a producer that names its producer id and epoch may be the one that holds the id, or was until now.
-- Source: TransactionCoordinator.prepareInitProducerIdTransit
function transaction.is_holder(t, producer_id, epoch)
  local fields = t.fields
  local was_last = transaction.is_exhausted(epoch) or epoch == fields.last_producer_epoch
  return producer_id == -1 or producer_id == fields.producer_id or producer_id == fields.last_producer_id and was_last
end

-- Whether a producer that may hold the id names the present epoch, and else whether the call is a repeated one. The
-- last epoch is no producer's own, so that who was fenced by it names the one before.
function transaction.judge_named(t, producer_id, epoch)
  local known, last = t.fields.producer_epoch, t.fields.last_producer_epoch
  if producer_id == t.fields.producer_id and (epoch == known or known == transaction.LAST_EPOCH and epoch == last) then
    return true, false
  end
  return false, epoch == last
end

-- What becomes of a producer that may hold the id: a code and fields to be set, none where the call is a repeated one.
-- Where epochs are used up, or may have been given out by a server that is gone, there is a new producer id.
-- Source: TransactionMetadata.prepareIncrementProducerEpoch, prepareProducerIdRotation
function transaction.reinitialized(t, producer_id, epoch, fresh_id)
  local is_named, is_repeated = producer_id ~= -1, false
  if is_named then
    local is_present
    is_present, is_repeated = transaction.judge_named(t, producer_id, epoch)
    if not is_present and not is_repeated then
      return code.PRODUCER_FENCED, {}
    end
  end
  local is_former = transaction.is_of_former_server(t)
  if is_repeated and not is_former then
    return code.NONE, {}
  end
  local last_id, known = is_named and producer_id or t.fields.producer_id, t.fields.producer_epoch
  local fields = { last_producer_id = last_id, last_producer_epoch = is_named and epoch or -1 }
  if not is_former and not transaction.is_exhausted(known) then
    fields.producer_epoch = known + 1
  elseif fresh_id == -1 then
    return code.FRESH_ID, {}
  else
    fields.producer_id, fields.producer_epoch, fields.run_id = fresh_id, 0, transaction.server()
  end
  return code.NONE, fields
end

-- What becomes of the first producer of an id, as transaction.reinitialized.
function transaction.initialized(fresh_id)
  if fresh_id == -1 then
    return code.FRESH_ID, {}
  end
  return code.NONE, {
    producer_id = fresh_id, producer_epoch = 0, last_producer_id = -1, last_producer_epoch = -1,
    run_id = transaction.server(),
  }
end

-- txn_init: give the producer of a transactional id its producer id and epoch, and fence the one before
-- A transaction that is open is aborted: the answer is CONCURRENT_TRANSACTIONS until that is finished.
-- KEYS[1] id        hash  state of the transactional id
-- KEYS[2] deadlines zset  transactional id -> ms at which something of it is due
-- ARGV[1] transactional_id   ARGV[2] timeout ms of transactions
-- ARGV[3] producer_id or -1   ARGV[4] producer_epoch or -1   as the producer knows them
-- ARGV[5] fresh_id   a producer id that was never used, or -1 while none is wanted
-- ARGV[6] outages   (optional) `served_until from-to ...` or ''
-- Returns {code, producer_id, epoch}; with CONCURRENT_TRANSACTIONS {code, -1, -1, decision}: call again when that is
-- finished
-- Codes: LATE, FRESH_ID, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS
-- Source: TransactionCoordinator.handleInitProducerId
function transaction.init(keys, args)
  local transactional_id, timeout = args[1], value.number(args[2], 'timeout')
  local producer_id, epoch = value.number(args[3], 'producer_id'), value.number(args[4], 'producer_epoch')
  local fresh_id = value.number(args[5], 'fresh_id')
  if group.is_late(args[6] or '') then
    return { code.LATE, -1, -1 }
  end
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
    outcome, fields = transaction.reinitialized(t, producer_id, epoch, fresh_id)
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
