-- The members of a transaction: partitions, and groups that commit offsets in it.

-- The code for a producer that may neither add nor verify members; nil if it may.
-- Source: TransactionCoordinator.handleAddPartitionsToTransaction, handleVerifyPartitionsInTransaction
function transaction.member_refusal(t, producer_id, epoch)
  if transaction.is_prepared(t) and producer_id >= 0 and t.fields.next_producer_id == producer_id then
    return code.CONCURRENT_TRANSACTIONS
  elseif t.fields.producer_id ~= producer_id then
    return code.INVALID_PRODUCER_ID_MAPPING
  elseif t.fields.producer_epoch ~= epoch then
    return code.PRODUCER_FENCED
  end
  return transaction.is_prepared(t) and code.CONCURRENT_TRANSACTIONS or nil
end

-- The members of flat pairs: names as in the id hash, `topic_id history` of each, and true if one is a partition.
function transaction.members(flat)
  local names, kept, has_partition = {}, {}, false
  for at = 1, #flat, 2 do
    local is_group = not string.find(flat[at + 1], '^[^ ]')
    names[#names + 1] = (is_group and 'g:' or 'p:') .. flat[at]
    kept[#kept + 1] = flat[at + 1]
    has_partition = has_partition or not is_group
  end
  return names, kept, has_partition
end

-- The id hash's texts of some members; false for a member that is not in the transaction.
function transaction.kept_of(t, names)
  return #names > 0 and redis.call('HMGET', t.keys[1], unpack(names)) or {}
end

-- A member's changes since it joined: its topic was deleted and made again, and its server is another. As in Kafka the
-- new topic's partition is in the transaction under its name.
function transaction.changes(kept, now)
  local topic_id, history = string.match(kept, '^(%S*) ?(.*)$')
  local topic_id_now, history_now = string.match(now, '^(%S*) ?(.*)$')
  local is_new = topic_id ~= topic_id_now
  return is_new, not is_new and history ~= '' and history_now ~= '' and history ~= history_now
end

-- Add members as [name, `topic_id history`, ...]; a transaction begins if none is open.
function transaction.take_in(t, transactional_id, members)
  local fields, due = {}, (t.fields.started_ms or -1) + t.fields.timeout_ms
  if t.fields.state ~= 'Ongoing' then
    fields = { ordinal = transaction.next_ordinal(t), started_ms = t.now, last_producer_id = t.fields.producer_id }
    due = t.now + t.fields.timeout_ms
  end
  transaction.move(t, transactional_id, 'Ongoing', fields, due) -- first write
  group.in_batches('HSET', t.keys[1], members)
end

-- A code for each member, and the members to write: new ones, and those of topics that were made again.
function transaction.judge_members(t, names, now, adds)
  local is_ongoing, kept = t.fields.state == 'Ongoing', transaction.kept_of(t, names)
  local codes, written = {}, {}
  for at, name in ipairs(names) do
    local is_held, is_new, is_moved = is_ongoing and kept[at], false, false
    if is_held then
      is_new, is_moved = transaction.changes(is_held, now[at])
    end
    codes[at] = (is_held or adds) and not is_moved and code.NONE or code.TRANSACTION_ABORTABLE
    if is_new or adds and not is_held then
      written[#written + 1] = name
      written[#written + 1] = now[at]
    end
  end
  return codes, written
end

korvet.define({
  name = 'txn_add',
  description = 'take partitions and groups into a transaction, or verify that they are in it',
  keys = '@transaction',
  args = [[
    transactional_id   producer_id:int   producer_epoch:int   mode:add|verify   outages
    members*2<=1000 `topic:partition`, `topic_id history`, ... of partitions and group, ` history`, ... of groups;
      history is the replication id of a member's server, and may be missing together with the space before it. A
      partition is known by its name: that of a topic that was made again gets its new topic_id, in both modes
  ]],
  returns = [[{code, ordinal or -1, [code, ...]} with a code for each member; with CONCURRENT_TRANSACTIONS {code, -1,
    [], decision, now_ms}]],
  codes = [[LATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, TRANSACTION_ABORTABLE (the
    shard may have lost calls of the transaction, and the members include a partition; with groups alone only the end
    tells this, because librdkafka never ends a transaction whose groups were refused); of a member
    TRANSACTION_ABORTABLE (it is not in the transaction that the call verifies, or its server changed since it
    joined)]],
  source = 'TransactionCoordinator.handleAddPartitionsToTransaction, handleVerifyPartitionsInTransaction',
}, function(keys, params)
  local adds = params.mode == 'add'
  local names, kept, has_partition = transaction.members(params.members)
  if group.is_late(params.outages) then
    return { code.LATE, -1, {} }
  end
  local t = transaction.open(keys)
  local refusal = transaction.member_refusal(t, params.producer_id, params.producer_epoch)
  if refusal then
    return { refusal, -1, {}, transaction.decision(t) }
  elseif has_partition and transaction.is_of_former_history(t) then
    if adds then
      redis.call('HSET', keys[1], 'told', server.ask_replid()) -- first write
    end
    return { code.TRANSACTION_ABORTABLE, -1, {} }
  end
  local codes, written = transaction.judge_members(t, names, kept, adds)
  if #written > 0 or adds and t.fields.state ~= 'Ongoing' then
    transaction.take_in(t, params.transactional_id, written)
  end
  return { code.NONE, t.fields.state == 'Ongoing' and t.fields.ordinal or -1, codes }
end)

-- Some members from a cursor on as [name, `topic_id history`, ...], and the cursor after them.
function transaction.flat_members(t, cursor)
  local members, behind = transaction.some_members(t, cursor)
  local flat = {}
  for name, kept in pairs(members) do
    flat[#flat + 1] = name
    flat[#flat + 1] = kept
  end
  return flat, behind
end

korvet.define({
  name = 'txn_members', flags = { 'no-writes', 'allow-oom' },
  description = 'the members of an open transaction, some at a time',
  keys = 'id hash state of the transactional id',
  args = 'ordinal:int   cursor from the last reply',
  returns = [[{code, cursor, [name, kept, ...]}: `p:topic:partition`, `topic_id history`, and `g:group`, ` history`;
    call again with the cursor until it is '0']],
  bound = '1000 members a call',
  codes = 'INVALID_TXN_STATE (the transaction is over)',
}, function(keys, params)
  local t = transaction.open(keys)
  if t.fields.state ~= 'Ongoing' or t.fields.ordinal ~= params.ordinal then
    return { code.INVALID_TXN_STATE, '0', {} }
  end
  local flat, cursor = transaction.flat_members(t, params.cursor)
  return { code.NONE, cursor, flat }
end)

korvet.define({
  name = 'txn_describe', flags = { 'no-writes', 'allow-oom' },
  description = 'the state of a transactional id',
  keys = 'id hash state of the transactional id',
  args = "cursor? the point at which to go on with the transaction's members, 0 at first",
  returns = [[{code}, or {0, name, value, ...} of state, producer_id, producer_epoch, last_producer_id,
    last_producer_epoch, marker_epoch, ordinal, timeout_ms, started_ms, updated_ms, partitions, groups, cursor; unknown
    numbers are -1. partitions: [`topic:partition`, topic_id, ...]. Call again with the cursor for further ones, until
    it is '0']],
  bound = '1000 members a call',
  codes = 'TRANSACTIONAL_ID_NOT_FOUND',
  source = 'TransactionCoordinator.handleDescribeTransactions',
}, function(keys, params)
  local t = transaction.open(keys)
  local fields = t.fields
  if not fields.state then
    return { code.TRANSACTIONAL_ID_NOT_FOUND }
  end
  local members, cursor = transaction.some_members(t, params.cursor or '0')
  local partitions, groups = transaction.told_members(members)
  return {
    code.NONE, 'state', fields.state, 'producer_id', fields.producer_id, 'producer_epoch', fields.producer_epoch,
    'last_producer_id', fields.last_producer_id or -1, 'last_producer_epoch', fields.last_producer_epoch or -1,
    'marker_epoch', fields.marker_epoch or -1, 'ordinal', fields.ordinal or -1, 'timeout_ms', fields.timeout_ms,
    'started_ms', fields.started_ms or -1, 'updated_ms', fields.updated_ms, 'partitions', partitions, 'groups', groups,
    'cursor', cursor,
  }
end)
