-- What a transaction touches: partitions, and groups whose offsets it commits.

-- Why a producer may not add to the transaction, or have something verified.
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

-- The members that are named by the arguments from one on, as fields of the id hash: [name, topic id or '', ...].
function transaction.members(args, first)
  local members = {}
  if (#args - first + 1) % 2 ~= 0 then
    error('members are not `topic:partition` and topic_id, or group and \'\'', 0)
  end
  for at = first, #args, 2 do
    members[#members + 1] = (args[at + 1] == '' and 'g:' or 'p:') .. args[at]
    members[#members + 1] = args[at + 1]
  end
  return members
end

-- Whether each of the members is in the transaction: true or false for each.
function transaction.has(t, members)
  local held = {}
  for at = 1, #members, 2 do
    held[#held + 1] = redis.call('HGET', t.keys[1], members[at]) == members[at + 1]
  end
  return held
end

-- Take in the members of which some are not in the transaction, which begins where none is open.
function transaction.take_in(t, transactional_id, members)
  local fields, due = {}, (t.fields.started_ms or -1) + t.fields.timeout_ms
  if t.fields.state ~= 'Ongoing' then
    fields = { ordinal = transaction.next_ordinal(t), started_ms = t.now, last_producer_id = t.fields.producer_id }
    due = t.now + t.fields.timeout_ms
  end
  transaction.move(t, transactional_id, 'Ongoing', fields, due) -- first write
  group.in_batches('HSET', t.keys[1], members)
end

-- txn_add: take partitions and groups into a transaction, or verify that they are in it
-- KEYS[1] id        hash  state of the transactional id
-- KEYS[2] deadlines zset  transactional id -> ms at which something of it is due
-- ARGV[1] transactional_id   ARGV[2] producer_id   ARGV[3] producer_epoch   ARGV[4] mode   add or verify
-- ARGV[5] outages: `served_until from-to ...` or ''
-- ARGV[6..] members: `topic:partition`, topic_id, ... of partitions and group, '', ... of groups
-- Returns {code, ordinal or -1, [code, ...]}, one for each member; with CONCURRENT_TRANSACTIONS {code, -1, [],
-- decision}
-- Codes: LATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS; of a member that is to be
-- verified TRANSACTION_ABORTABLE
-- Source: TransactionCoordinator.handleAddPartitionsToTransaction, handleVerifyPartitionsInTransaction
function transaction.add(keys, args)
  local transactional_id = args[1]
  local producer_id, epoch = value.number(args[2], 'producer_id'), value.number(args[3], 'producer_epoch')
  local mode = transaction.one_of(args[4], 'add', 'verify', 'mode')
  local members = transaction.members(args, 6)
  if group.is_late(args[5]) then
    return { code.LATE, -1, {} }
  end
  local t = transaction.open(keys)
  local refusal = transaction.member_refusal(t, producer_id, epoch)
  if refusal then
    return { refusal, -1, {}, transaction.decision(t) }
  end
  local is_ongoing = t.fields.state == 'Ongoing'
  local held, codes, lacks = transaction.has(t, members), {}, false
  for at, is_held in ipairs(held) do
    is_held = is_held and is_ongoing
    lacks = lacks or not is_held
    codes[at] = (mode == 'add' or is_held) and code.NONE or code.TRANSACTION_ABORTABLE
  end
  if mode == 'add' and (lacks or not is_ongoing) then
    transaction.take_in(t, transactional_id, members)
  end
  return { code.NONE, t.fields.state == 'Ongoing' and t.fields.ordinal or -1, codes }
end
redis.register_function{
  function_name = 'korvet_txn_add',
  callback = transaction.add,
  description = 'take partitions and groups into a transaction, or verify that they are in it',
}

-- txn_describe: the state of a transactional id
-- KEYS[1] id hash  state of the transactional id
-- Returns {code}, or {0, name, value, ...} of state, producer_id, producer_epoch, last_producer_id,
-- last_producer_epoch, marker_epoch, ordinal, timeout_ms, started_ms, updated_ms, partitions, groups; numbers that are
-- not known are -1. partitions: [`topic:partition`, topic_id, ...]
-- Codes: TRANSACTIONAL_ID_NOT_FOUND
-- Source: TransactionCoordinator.handleDescribeTransactions
function transaction.describe(keys)
  local t = transaction.open(keys)
  local fields = t.fields
  if not fields.state then
    return { code.TRANSACTIONAL_ID_NOT_FOUND }
  end
  local places, groups = transaction.touched(t)
  return {
    code.NONE, 'state', fields.state, 'producer_id', fields.producer_id, 'producer_epoch', fields.producer_epoch,
    'last_producer_id', fields.last_producer_id or -1, 'last_producer_epoch', fields.last_producer_epoch or -1,
    'marker_epoch', fields.marker_epoch or -1, 'ordinal', fields.ordinal or -1, 'timeout_ms', fields.timeout_ms,
    'started_ms', fields.started_ms or -1, 'updated_ms', fields.updated_ms, 'partitions', places, 'groups', groups,
  }
end
redis.register_function{
  function_name = 'korvet_txn_describe',
  callback = transaction.describe,
  flags = { 'no-writes', 'allow-oom' },
  description = 'the state of a transactional id',
}
