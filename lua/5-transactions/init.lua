-- InitProducerId: the first call of a producer with a transactional id, and its call after an error.

-- True if a producer id and epoch may belong to the present or the former holder of the transactional id.
-- Source: TransactionCoordinator.prepareInitProducerIdTransit
function transaction.is_holder(t, producer_id, epoch)
  local fields = t.fields
  local was_last = transaction.is_exhausted(epoch) or epoch == fields.last_producer_epoch
  return producer_id == -1 or producer_id == fields.producer_id or producer_id == fields.last_producer_id and was_last
end

-- Judge the epoch of a producer that may hold the id: is it the present one, and if not, is the call a repeated one. If
-- the last epoch fenced a producer, that producer names the epoch before it.
function transaction.judge_named(t, producer_id, epoch)
  local known, last = t.fields.producer_epoch, t.fields.last_producer_epoch
  if producer_id == t.fields.producer_id and (epoch == known or known == transaction.LAST_EPOCH and epoch == last) then
    return true, false
  end
  return false, epoch == last
end

-- The code for a producer that may hold the id, and the fields to set; no fields for a repeated call. If epochs are
-- used up, or a lost server may have given them out, the producer gets a new producer id.
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
    fields.producer_id, fields.producer_epoch, fields.replid = fresh_id, 0, server.replid()
  end
  return code.NONE, fields
end

-- The code for the first producer of an id, and the fields to set.
function transaction.initialized(fresh_id)
  if fresh_id == -1 then
    return code.FRESH_ID, {}
  end
  return code.NONE, {
    producer_id = fresh_id, producer_epoch = 0, last_producer_id = -1, last_producer_epoch = -1,
    replid = server.replid(),
  }
end

-- The number of transactional ids in a shard. The deadlines' member of the empty name is not an id.
function transaction.count_ids(deadlines_key)
  return redis.call('ZCARD', deadlines_key) - (redis.call('ZSCORE', deadlines_key, '') and 1 or 0)
end

korvet.define({
  name = 'txn_init',
  description = 'give the producer of a transactional id its producer id and epoch, and fence the one before',
  keys = '@transaction',
  args = [[
    transactional_id   timeout:int ms of transactions   producer_id:int or -1
    producer_epoch:int or -1 as the producer knows them
    fresh_id:int a producer id that was never used, or -1 until a reply asks for one   outages?
    most:int? the largest number of ids in the shard
  ]],
  returns = [[{code, producer_id, epoch}; with CONCURRENT_TRANSACTIONS {code, -1, -1, decision, now_ms}: finish the
    decision, then call again]],
  codes = 'LATE, FRESH_ID, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, POLICY_VIOLATION',
  source = 'TransactionCoordinator.handleInitProducerId',
  notes = 'An open transaction is aborted: the answer is CONCURRENT_TRANSACTIONS until the abort is finished.',
}, function(keys, params)
  local transactional_id, producer_id, epoch = params.transactional_id, params.producer_id, params.producer_epoch
  if group.is_late(params.outages or '') then
    return { code.LATE, -1, -1 }
  end
  local t = transaction.open(keys)
  local outcome, fields
  if not t.fields.state and params.most and transaction.count_ids(keys[2]) >= params.most then
    return { code.POLICY_VIOLATION, -1, -1 }
  elseif not t.fields.state then
    outcome, fields = transaction.initialized(params.fresh_id)
  elseif not transaction.is_holder(t, producer_id, epoch) then
    return { code.PRODUCER_FENCED, -1, -1 }
  elseif t.fields.state == 'Ongoing' then
    transaction.fence(t, transactional_id)
    return { code.CONCURRENT_TRANSACTIONS, -1, -1, transaction.decision(t) }
  elseif transaction.is_prepared(t) then
    return { code.CONCURRENT_TRANSACTIONS, -1, -1, transaction.decision(t) }
  else
    outcome, fields = transaction.reinitialized(t, producer_id, epoch, params.fresh_id)
  end
  if outcome ~= code.NONE then
    return { outcome, -1, -1 }
  end
  fields.timeout_ms, fields.started_ms, fields.marker_epoch, fields.next_producer_id = params.timeout, -1, -1, -1
  fields.history = server.replid()
  transaction.move(t, transactional_id, 'Empty', fields, t.now + params.timeout)
  return { code.NONE, t.fields.producer_id, t.fields.producer_epoch }
end)
