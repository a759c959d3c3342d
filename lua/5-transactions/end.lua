-- EndTxn, the completion of a decision, and the deadlines of transactional ids.

-- The code for an EndTxn that asks for the opposite of the decision. If a part of the transaction was lost, the shard
-- had turned its commit into an abort.
function transaction.judge_other_end(t, decision)
  local is_lost = decision == 'commit' and t.fields.lost ~= nil and t.fields.lost == t.fields.ordinal
  return is_lost and code.TRANSACTION_ABORTABLE or code.INVALID_TXN_STATE
end

-- The code for an EndTxn of transaction version 1 if no transaction is open, and one after the last decision may be
-- lost. If that decision was a commit, the call may be a repeated one. Only a front-end that asked the members of this
-- transaction before the failover knows that.
function transaction.judge_unknown_end(t, decision, checked)
  if decision == 'commit' and transaction.DECISIONS[t.fields.state] ~= 'commit' then
    return code.TRANSACTION_ABORTABLE
  elseif decision == 'commit' and tonumber(string.match(checked or '', '^%d+')) ~= t.fields.ordinal then
    return code.PRODUCER_FENCED
  end
  return transaction.is_prepared(t) and code.CONCURRENT_TRANSACTIONS or code.NONE
end

-- The code for an EndTxn of transaction version 1, which keeps the epoch, and true to decide.
-- Source: TransactionCoordinator.endTransactionWithTV1
function transaction.judge_end_v1(t, producer_id, epoch, decision, checked)
  if t.fields.producer_id ~= producer_id then
    return code.INVALID_PRODUCER_ID_MAPPING
  elseif t.fields.producer_epoch ~= epoch then
    return code.PRODUCER_FENCED
  elseif t.fields.state == 'Ongoing' then
    return code.NONE, true
  elseif transaction.is_of_former_history(t) then
    return transaction.judge_unknown_end(t, decision, checked)
  elseif transaction.DECISIONS[t.fields.state] ~= decision then
    return transaction.judge_other_end(t, decision)
  end
  return transaction.is_prepared(t) and code.CONCURRENT_TRANSACTIONS or code.NONE
end

-- True if an EndTxn of transaction version 2 is a repeated one: each end raises the epoch or gives a new producer id.
function transaction.is_repeated_end(t, producer_id, epoch)
  local fields = t.fields
  if not transaction.DECISIONS[fields.state] then
    return false
  elseif fields.producer_id == producer_id then
    return fields.producer_epoch == epoch + 1
  end
  return fields.last_producer_id == producer_id and fields.producer_epoch == 0 and fields.last_producer_epoch == epoch
end

-- The reply to a repeated EndTxn: the producer id and epoch to go on with. If a lost server may have
-- used them, the producer gets a new id, or FRESH_ID requests one. An end that the shard knows is not lost, and no call
-- came after it.
function transaction.told_again(t, producer_id, epoch, is_v2, fresh_id)
  if is_v2 and transaction.is_of_former_server(t) then
    if fresh_id == -1 then
      return { code.FRESH_ID, -1, -1 }
    end
    redis.call(
      'HSET', t.keys[1], 'producer_id', value.integer(fresh_id), 'producer_epoch', 0, 'replid', server.replid(),
      'history', server.replid(), 'last_producer_id', value.integer(producer_id),
      'last_producer_epoch', value.integer(epoch)
    ) -- first write
    return { code.NONE, fresh_id, 0 }
  elseif transaction.is_of_former_history(t) and (is_v2 or transaction.is_told(t)) then
    redis.call('HSET', t.keys[1], 'history', server.replid()) -- first write
  end
  return { code.NONE, t.fields.producer_id, t.fields.producer_epoch }
end

-- The code for an EndTxn of transaction version 2, and true to decide. With the present epoch it ends the next
-- transaction. A transaction without members can only be aborted.
-- Source: TransactionCoordinator.endTransaction
function transaction.judge_end_v2(t, producer_id, epoch, decision)
  local fields = t.fields
  if transaction.is_repeated_end(t, producer_id, epoch) then
    if transaction.DECISIONS[fields.state] ~= decision then
      return transaction.judge_other_end(t, decision)
    end
    return transaction.is_prepared(t) and code.CONCURRENT_TRANSACTIONS or code.NONE
  elseif fields.producer_id ~= producer_id then
    return code.INVALID_PRODUCER_ID_MAPPING
  elseif fields.producer_epoch ~= epoch or transaction.is_prepared(t) then
    return code.PRODUCER_FENCED
  elseif fields.state ~= 'Ongoing' and decision == 'commit' then
    return transaction.is_of_former_history(t) and code.TRANSACTION_ABORTABLE or code.INVALID_TXN_STATE
  end
  return code.NONE, true
end

-- Decide how the open transaction ends, or the empty transaction of a producer without writes. Returns the reply of
-- txn_end: FRESH_ID if the producer needs a new producer id and the caller gave none.
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

-- Do all members of an open transaction hold it? true; false if a part may be lost; nil if the caller has to ask
-- them. A front-end of the former version does not ask.
function transaction.is_whole(t, checked)
  if transaction.is_of_former_history(t) then
    return false
  elseif not checked then
    return true
  end
  local ordinal, size, found = string.match(checked, '^(%d+) (%d+) (%a+)$')
  if tonumber(ordinal) ~= t.fields.ordinal then
    return nil
  elseif found == 'lost' then
    return false
  end
  return tonumber(size) == t.size or nil
end

-- Abort a transaction instead of its commit, because a part of it may be lost.
function transaction.give_up(t, transactional_id, is_v2, fresh_id)
  t.fields.told = server.ask_replid()
  local reply = transaction.decide(t, transactional_id, 'abort', is_v2, fresh_id)
  if reply[1] == code.FRESH_ID then
    return reply
  end
  redis.call('HSET', t.keys[1], 'lost', value.integer(t.fields.ordinal))
  return { code.TRANSACTION_ABORTABLE, -1, -1, reply[4], reply[5] }
end

-- Decide to commit if nothing of the transaction is lost.
function transaction.commit(t, transactional_id, is_v2, fresh_id, checked)
  local is_whole = transaction.is_whole(t, checked)
  if is_whole == nil then
    local members, cursor = transaction.flat_members(t, '0')
    return { code.CHECK, -1, -1, { t.fields.ordinal, t.size, cursor, members } }
  elseif is_whole then
    return transaction.decide(t, transactional_id, 'commit', is_v2, fresh_id)
  end
  return transaction.give_up(t, transactional_id, is_v2, fresh_id)
end

korvet.define({
  name = 'txn_end', flags = { 'allow-oom' },
  description = 'decide that a transaction is committed or aborted',
  keys = '@transaction',
  args = [[
    transactional_id   producer_id:int   producer_epoch:int   decision:commit|abort
    version:1|2 the producer's transaction version: 1, or 2 if each end raises its epoch
    fresh_id:int a producer id that was never used, or -1 until a reply asks for one   outages?
    checked? '', or the result of CHECK: `ordinal size held`, or `lost` instead of `held`
  ]],
  returns = [[{code, producer_id, epoch}, or {code, producer_id, epoch, decision, now_ms} if a decision is unfinished,
    also with CONCURRENT_TRANSACTIONS and TRANSACTION_ABORTABLE; with CHECK {code, -1, -1, [ordinal, size, cursor,
    members]}: look at these members, get further ones from txn_members by the cursor, and call again]],
  codes = [[LATE, FRESH_ID, CHECK, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE,
    CONCURRENT_TRANSACTIONS, TRANSACTION_ABORTABLE (the shard aborts instead of a commit, because a part may be lost)]],
  source = 'TransactionCoordinator.endTransaction, TransactionMetadata.prepareAbortOrCommit',
  notes = 'The producer goes on with the producer id and epoch of the reply when the decision is finished.',
}, function(keys, params)
  local producer_id, epoch, fresh_id = params.producer_id, params.producer_epoch, params.fresh_id
  local transactional_id, decision, is_v2 = params.transactional_id, params.decision, params.version == '2'
  if group.is_late(params.outages or '') then
    return { code.LATE, -1, -1 }
  end
  local t = transaction.open(keys)
  if not t.fields.state then
    return { code.INVALID_PRODUCER_ID_MAPPING, -1, -1 }
  end
  local judge = is_v2 and transaction.judge_end_v2 or transaction.judge_end_v1
  local outcome, is_to_decide = judge(t, producer_id, epoch, decision, params.checked)
  if outcome ~= code.NONE then
    if outcome == code.CONCURRENT_TRANSACTIONS then
      return { outcome, -1, -1, transaction.decision(t) }
    end
    return { outcome, -1, -1 }
  elseif not is_to_decide then
    return transaction.told_again(t, producer_id, epoch, is_v2, fresh_id)
  elseif decision == 'commit' then
    return transaction.commit(t, transactional_id, is_v2, fresh_id, params.checked)
  end
  return transaction.decide(t, transactional_id, decision, is_v2, fresh_id)
end)

-- The names of all members of a decision that a front-end of the former version finished; nil if the replies had not
-- named all members.
function transaction.names_of_all(t)
  if t.fields.paged or t.size > transaction.MEMBERS then
    return nil
  end
  local names = {}
  for name in pairs((transaction.some_members(t, '0'))) do
    names[#names + 1] = name
  end
  return names
end

-- Raise an error if a name does not belong to a member.
function transaction.check_names(names)
  for _, name in ipairs(names) do
    if not string.find(name, '^[pg]:') then
      error('a member is neither a partition nor a group: ' .. name, 0)
    end
  end
end

korvet.define({
  name = 'txn_complete', flags = { 'allow-oom' },
  description = 'note that a decision is finished, everywhere or in some of the partitions and groups',
  keys = '@transaction',
  args = [[
    transactional_id   ordinal:int of the decision   expiration:int ms of idle transactional ids
    finished*<=1000 `p:topic:partition` and `g:group` of the members that the decision named; none from a front-end of
      the former version
  ]],
  returns = '{0}, or {0, decision, now_ms} if unfinished members are left; may be repeated',
  source = 'TransactionMetadata.prepareComplete',
}, function(keys, params)
  local names = params.finished
  transaction.check_names(names)
  local t = transaction.open(keys)
  if t.fields.ordinal ~= params.ordinal or not transaction.is_prepared(t) then
    return { code.NONE }
  end
  if #names == 0 then
    names = transaction.names_of_all(t)
    if not names then
      return { code.NONE }
    end
  end
  transaction.forget(t, names) -- first write
  if t.size > 0 then
    redis.call('HSET', t.keys[1], 'paged', 1)
    return { code.NONE, transaction.decision(t) }
  end
  local state = t.fields.state == 'PrepareCommit' and 'CompleteCommit' or 'CompleteAbort'
  local fields = { next_producer_id = -1 }
  if (t.fields.next_producer_id or -1) >= 0 then
    fields.last_producer_id = t.fields.producer_id
    fields.producer_id, fields.producer_epoch = t.fields.next_producer_id, 0
  end
  transaction.move(t, params.transactional_id, state, fields, t.now + params.expiration)
  redis.call('HDEL', t.keys[1], 'paged')
  return { code.NONE }
end)

korvet.define({
  name = 'txn_due', flags = { 'no-writes', 'allow-oom' },
  description = 'the transactional ids that have work due',
  keys = 'deadlines zset transactional id -> ms at which its next work is due',
  args = 'most:int the largest number of ids',
  returns = '[transactional_id, ...]',
  bound = '1000 transactional ids a call',
}, function(keys, params)
  local now, most = value.integer(value.now_ms()), math.min(params.most, 1000)
  return redis.call('ZRANGEBYSCORE', keys[1], '-inf', now, 'LIMIT', 0, most)
end)

-- The due time of an id without an unfinished decision: its transaction's timeout, or its own expiration.
function transaction.next_due(t, expiration)
  if t.fields.state == 'Ongoing' then
    return t.fields.started_ms + t.fields.timeout_ms
  end
  return t.fields.updated_ms + expiration
end

-- Have an id be due at a time. The id notes its times anew if the clock went back.
function transaction.wait_until(t, transactional_id, due)
  redis.call('ZADD', t.keys[2], value.integer(due), transactional_id) -- first write
  if t.back_ms > 0 then
    redis.call(
      'HSET', t.keys[1], 'updated_ms', value.integer(t.fields.updated_ms), 'started_ms',
      value.integer(t.fields.started_ms)
    )
  end
end

-- The next time that a front-end gets an unfinished decision: the older the decision, the longer the pause.
function transaction.next_try(t)
  local age = t.now - t.fields.updated_ms
  return t.now + math.min(math.max(age / 2, transaction.GRACE_MS), transaction.MOST_GRACE_MS)
end

korvet.define({
  name = 'txn_expire', flags = { 'allow-oom' },
  description = 'do the work that is due of a transactional id',
  keys = '@transaction',
  args = 'transactional_id   expiration:int ms of idle transactional ids',
  returns = '{0}, or {0, decision, now_ms} if a decision is unfinished',
  source = 'TransactionCoordinator.abortTimedOutTransactions, TransactionStateManager.removeExpiredTransactionalIds',
  notes = [[A transaction past its timeout is aborted. The reply has a decision that was not finished for a second, and
    again after pauses that grow to ten seconds. An id that was not used for the expiration is removed. If the clock
    went back, a call moves the id's times back.]],
}, function(keys, params)
  local transactional_id = params.transactional_id
  local t = transaction.open(keys)
  if not t.fields.state then
    redis.call('ZREM', keys[2], transactional_id) -- first write
    return { code.NONE }
  elseif transaction.is_prepared(t) then
    if t.back_ms == 0 and t.now < tonumber(redis.call('ZSCORE', keys[2], transactional_id) or 0) then
      return { code.NONE }
    end
    transaction.wait_until(t, transactional_id, transaction.next_try(t))
    return { code.NONE, transaction.decision(t) }
  end
  local due = transaction.next_due(t, params.expiration)
  if t.now < due then
    transaction.wait_until(t, transactional_id, due)
  elseif t.fields.state == 'Ongoing' then
    transaction.fence(t, transactional_id)
    return { code.NONE, transaction.decision(t) }
  else
    redis.call('UNLINK', keys[1]) -- first write
    redis.call('ZREM', keys[2], transactional_id)
  end
  return { code.NONE }
end)
