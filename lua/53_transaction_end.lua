-- The decision about a transaction, and its end.

-- What becomes of an EndTxn of transaction version 1, whose epoch stays: a code, and whether to decide.
-- Source: TransactionCoordinator.endTransactionWithTV1
function transaction.judge_end_v1(t, producer_id, epoch, decision)
  if t.fields.producer_id ~= producer_id then
    return code.INVALID_PRODUCER_ID_MAPPING
  elseif t.fields.producer_epoch ~= epoch then
    return code.PRODUCER_FENCED
  elseif t.fields.state == 'Ongoing' then
    return code.NONE, true
  elseif transaction.DECISIONS[t.fields.state] ~= decision then
    return code.INVALID_TXN_STATE
  end
  return transaction.is_prepared(t) and code.CONCURRENT_TRANSACTIONS or code.NONE
end

-- Whether an EndTxn of transaction version 2 was made before: each end raises the epoch or gives a new producer id.
function transaction.is_repeated_end(t, producer_id, epoch)
  local fields = t.fields
  if not transaction.DECISIONS[fields.state] then
    return false
  elseif fields.producer_id == producer_id then
    return fields.producer_epoch == epoch + 1
  end
  return fields.last_producer_id == producer_id and fields.producer_epoch == 0 and fields.last_producer_epoch == epoch
end

-- The producer id and epoch with which who repeats its EndTxn goes on; a new id where those that it would be told may
-- have been in use on a server that is gone; FRESH_ID where one is wanted.
function transaction.told_again(t, producer_id, epoch, is_v2, fresh_id)
  if is_v2 and transaction.is_of_former_server(t) then
    if fresh_id == -1 then
      return { code.FRESH_ID, -1, -1 }
    end
    redis.call(
      'HSET', t.keys[1], 'producer_id', value.integer(fresh_id), 'producer_epoch', 0, 'run_id', transaction.server(),
      'last_producer_id', value.integer(producer_id), 'last_producer_epoch', value.integer(epoch)
    ) -- first write
    return { code.NONE, fresh_id, 0 }
  end
  return { code.NONE, t.fields.producer_id, t.fields.producer_epoch }
end

-- What becomes of an EndTxn of transaction version 2: a code, and whether to decide. One of the present epoch is that
-- of the next transaction, which may have touched nothing and can then only be aborted.
-- Source: TransactionCoordinator.endTransaction
function transaction.judge_end_v2(t, producer_id, epoch, decision)
  local fields = t.fields
  if transaction.is_repeated_end(t, producer_id, epoch) then
    if transaction.DECISIONS[fields.state] ~= decision then
      return code.INVALID_TXN_STATE
    end
    return transaction.is_prepared(t) and code.CONCURRENT_TRANSACTIONS or code.NONE
  elseif fields.producer_id ~= producer_id then
    return code.INVALID_PRODUCER_ID_MAPPING
  elseif fields.producer_epoch ~= epoch or transaction.is_prepared(t) then
    return code.PRODUCER_FENCED
  elseif fields.state ~= 'Ongoing' and decision == 'commit' then
    return code.INVALID_TXN_STATE
  end
  return code.NONE, true
end

-- Decide how the open transaction ends, or that of a producer that wrote nothing: the reply of txn_end, FRESH_ID where
-- the producer has to go on with a producer id of which none is at hand.
function transaction.decide(t, transactional_id, decision, is_v2, fresh_id)
  local is_used_up = transaction.is_exhausted(t.fields.producer_epoch)
  local is_rotated = is_v2 and (is_used_up or transaction.is_of_former_server(t))
  if is_rotated and fresh_id == -1 then
    return { code.FRESH_ID, -1, -1 }
  end
  transaction.prepare(t, transactional_id, decision, is_v2, is_rotated and fresh_id or nil)
  if is_rotated then
    return { code.NONE, fresh_id, 0, transaction.decision(t) }
  end
  return { code.NONE, t.fields.producer_id, t.fields.producer_epoch, transaction.decision(t) }
end

-- txn_end: decide that a transaction is committed or aborted
-- The producer goes on with the producer id and epoch of the reply when the decision is finished.
-- KEYS[1] id        hash  state of the transactional id
-- KEYS[2] deadlines zset  transactional id -> ms at which something of it is due
-- ARGV[1] transactional_id   ARGV[2] producer_id   ARGV[3] producer_epoch   ARGV[4] decision   commit or abort
-- ARGV[5] version   of transactions, as the producer has it: 1, or 2 where each end raises its epoch
-- ARGV[6] fresh_id   a producer id that was never used, or -1 while none is wanted
-- ARGV[7] outages   (optional) `served_until from-to ...` or ''
-- Returns {code, producer_id, epoch}, or {code, producer_id, epoch, decision} where there is one to be finished, also
-- with CONCURRENT_TRANSACTIONS
-- Codes: LATE, FRESH_ID, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS
-- Source: TransactionCoordinator.endTransaction, TransactionMetadata.prepareAbortOrCommit
function transaction.end_(keys, args)
  local transactional_id = args[1]
  local producer_id, epoch = value.number(args[2], 'producer_id'), value.number(args[3], 'producer_epoch')
  local decision = transaction.one_of(args[4], 'commit', 'abort', 'decision')
  local is_v2 = transaction.one_of(args[5], '1', '2', 'version') == '2'
  local fresh_id = value.number(args[6], 'fresh_id')
  if group.is_late(args[7] or '') then
    return { code.LATE, -1, -1 }
  end
  local t = transaction.open(keys)
  if not t.fields.state then
    return { code.INVALID_PRODUCER_ID_MAPPING, -1, -1 }
  end
  local judge = is_v2 and transaction.judge_end_v2 or transaction.judge_end_v1
  local outcome, is_to_decide = judge(t, producer_id, epoch, decision)
  if outcome ~= code.NONE then
    return { outcome, -1, -1, outcome == code.CONCURRENT_TRANSACTIONS and transaction.decision(t) or nil }
  elseif not is_to_decide then
    return transaction.told_again(t, producer_id, epoch, is_v2, fresh_id)
  end
  return transaction.decide(t, transactional_id, decision, is_v2, fresh_id)
end
redis.register_function{
  function_name = 'korvet_txn_end',
  callback = transaction.end_,
  flags = { 'allow-oom' },
  description = 'decide that a transaction is committed or aborted',
}

-- txn_complete: note that a decision is finished everywhere
-- KEYS[1] id        hash  state of the transactional id
-- KEYS[2] deadlines zset  transactional id -> ms at which something of it is due
-- ARGV[1] transactional_id   ARGV[2] ordinal of the decision   ARGV[3] expiration ms of idle transactional ids
-- Returns {0}; may be repeated
-- Source: TransactionMetadata.prepareComplete
function transaction.complete(keys, args)
  local ordinal, expiration = value.number(args[2], 'ordinal'), value.number(args[3], 'expiration')
  local t = transaction.open(keys)
  if t.fields.ordinal ~= ordinal or not transaction.is_prepared(t) then
    return { code.NONE }
  end
  local state = t.fields.state == 'PrepareCommit' and 'CompleteCommit' or 'CompleteAbort'
  local fields = { next_producer_id = -1 }
  if (t.fields.next_producer_id or -1) >= 0 then
    fields.last_producer_id = t.fields.producer_id
    fields.producer_id, fields.producer_epoch = t.fields.next_producer_id, 0
  end
  transaction.move(t, args[1], state, fields, t.now + expiration) -- first write
  transaction.forget(t)
  return { code.NONE }
end
redis.register_function{
  function_name = 'korvet_txn_complete',
  callback = transaction.complete,
  flags = { 'allow-oom' },
  description = 'note that a decision is finished everywhere',
}

-- txn_due: the transactional ids of which something is due
-- KEYS[1] deadlines zset  transactional id -> ms at which something of it is due
-- ARGV[1] most   how many at most
-- Returns [transactional_id, ...]
function transaction.due(keys, args)
  local now = value.integer(value.now_ms())
  return redis.call('ZRANGEBYSCORE', keys[1], '-inf', now, 'LIMIT', 0, value.number(args[1], 'most'))
end
redis.register_function{
  function_name = 'korvet_txn_due',
  callback = transaction.due,
  flags = { 'no-writes', 'allow-oom' },
  description = 'the transactional ids of which something is due',
}

-- When something of an id is due that is not prepared: the end of its transaction's time, or of its own.
function transaction.next_due(t, expiration)
  if t.fields.state == 'Ongoing' then
    return t.fields.started_ms + t.fields.timeout_ms
  end
  return t.fields.updated_ms + expiration
end

-- When a decision is told again that is not finished by then: the longer it has taken, the later.
function transaction.next_try(t)
  local age = t.now - t.fields.updated_ms
  return t.now + math.min(math.max(age / 2, transaction.GRACE_MS), transaction.MOST_GRACE_MS)
end

-- txn_expire: do what is due of a transactional id
-- A transaction past its timeout is aborted, a decision that was not finished for a second is told, again after a while
-- that grows to ten seconds, and an id that was not used for the expiration is removed.
-- KEYS[1] id        hash  state of the transactional id
-- KEYS[2] deadlines zset  transactional id -> ms at which something of it is due
-- ARGV[1] transactional_id   ARGV[2] expiration ms of idle transactional ids
-- Returns {0}, or {0, decision} where there is one to be finished
-- Source: TransactionCoordinator.abortTimedOutTransactions, TransactionStateManager.removeExpiredTransactionalIds
function transaction.expire(keys, args)
  local transactional_id, expiration = args[1], value.number(args[2], 'expiration')
  local t = transaction.open(keys)
  if not t.fields.state then
    redis.call('ZREM', keys[2], transactional_id) -- first write
    return { code.NONE }
  elseif transaction.is_prepared(t) then
    if t.now < tonumber(redis.call('ZSCORE', keys[2], transactional_id) or 0) then
      return { code.NONE }
    end
    redis.call('ZADD', keys[2], value.integer(transaction.next_try(t)), transactional_id) -- first write
    return { code.NONE, transaction.decision(t) }
  end
  local due = transaction.next_due(t, expiration)
  if t.now < due then
    redis.call('ZADD', keys[2], value.integer(due), transactional_id) -- first write
  elseif t.fields.state == 'Ongoing' then
    transaction.fence(t, transactional_id)
    return { code.NONE, transaction.decision(t) }
  else
    redis.call('UNLINK', keys[1]) -- first write
    redis.call('ZREM', keys[2], transactional_id)
  end
  return { code.NONE }
end
redis.register_function{
  function_name = 'korvet_txn_expire',
  callback = transaction.expire,
  flags = { 'allow-oom' },
  description = 'do what is due of a transactional id',
}
