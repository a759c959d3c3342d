-- Offsets that a transaction commits. Source: OffsetMetadataManager.
--
-- The pending hash: producer id -> `epoch closed_ordinal open_ordinal transactional_id`, as in a partition, and the
-- held offsets, which lua/3-groups/held.lua describes. A late commit is known by its ordinal. A transaction that is
-- being ended is closed and open at once. The field of the empty name is the cursor of the last sweep. The group hash's
-- field transactions is the number of open transactions; with any, the group does not expire.
--
-- The later commit counts, whenever its transaction ends: the hold with the greater number. A position that is neither
-- a transaction's nor the one before its hold is a later commit without a transaction.

-- The code if a commit in a transaction is refused. Producers before KIP-447 name neither member nor generation.
-- Source: OffsetMetadataManager.validateTransactionalOffsetCommit, ClassicGroup.validateOffsetCommit
function group.txn_commit_refusal(g, id, instance_id, generation)
  if group.is_consumer(g) then
    return group.consumer.txn_commit_refusal(g, id, instance_id, generation)
  elseif not group.exists(g) then
    return generation >= 0 and code.ILLEGAL_GENERATION or nil
  elseif generation < 0 and (group.is(g, 'Empty') or id == '' and instance_id == '') then
    return nil
  end
  local refusal = group.refusal(g, id, instance_id)
  return refusal or generation ~= g.fields.generation and code.ILLEGAL_GENERATION or nil
end

-- The code if a commit of this ordinal is refused: its transaction was ended here, or a later one is open.
function group.ordinal_refusal(pending_key, known, producer_id, epoch, ordinal)
  local last_epoch = string.match(redis.call('HGET', pending_key, producer_id) or '', '^%-?%d+')
  if last_epoch and tonumber(last_epoch) > epoch then
    return code.INVALID_PRODUCER_EPOCH
  end
  return (ordinal <= known.closed or ordinal < known.open) and code.INVALID_TXN_STATE or nil
end

-- Hold offsets for a producer's transaction. The holds of an older transaction that was never ended are forgotten.
local function hold(g, pending_key, request, known)
  local producer_id, ordinal = request.producer_id, request.ordinal
  if known.open < 0 then
    group.set(g, 'transactions', (g.fields.transactions or 0) + 1)
  end
  group.save(g) -- first write
  if known.open ~= ordinal then
    while known.open >= 0 and known.done < known.pieces do
      group.end_pieces(g, pending_key, producer_id, known, false)
    end
    group.remove_pieces(pending_key, producer_id, known)
    known.pieces, known.done = 0, 0
  end
  known.open, known.transactional_id = ordinal, request.transactional_id
  redis.call('HSET', pending_key, producer_id, log.transaction_entry(value.integer(request.producer_epoch), known))
  group.hold_offsets(g, pending_key, producer_id, known, value.pairs(request.offsets))
end

-- group_txn_commit: hold offsets that a transaction commits when it is committed
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- KEYS[6] attached hash  topic:partition -> id of the topic with a Redis group there
-- KEYS[7] pending  hash  producer id -> its transactions and the offsets of the open one
-- ARGV[1] outages: `served_until from-to ...` or ''
-- ARGV[2] id and ARGV[3] locator of a new group, '' while it is not in the index
-- ARGV[4] member_id or ''   ARGV[5] instance_id or ''   ARGV[6] generation or -1   ARGV[7] retention ms
-- ARGV[8] producer_id   ARGV[9] producer_epoch   ARGV[10] ordinal of the transaction   ARGV[11] transactional_id
-- ARGV[12..] offsets: `topic:partition`, `offset leader_epoch topic_id metadata`, ...
-- Returns code; may be repeated
-- Bound: 2000 offsets; two arguments for each
-- Codes: LATE, UNINDEXED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INVALID_PRODUCER_EPOCH,
-- INVALID_TXN_STATE (the transaction of the ordinal was ended here), INVALID_REQUEST (it holds as many offsets as it
-- may)
-- Source: OffsetMetadataManager.commitTransactionalOffset
function group.txn_commit(keys, args)
  local request = group.arguments(keys, args,
    'group_txn_commit: outages id locator member_id instance_id generation:int retention:int producer_id '
      .. 'producer_epoch:int ordinal:int transactional_id offsets*2<=2000', 2)
  if group.is_late(request.outages) then
    return code.LATE
  end
  local producer_id, ordinal, retention = request.producer_id, request.ordinal, request.retention
  local g, known = group.open_beside(keys), group.pending_of(keys[7], producer_id)
  group.advance(g, request.outages)
  local refusal = group.ordinal_refusal(keys[7], known, producer_id, request.producer_epoch, ordinal)
    or group.txn_commit_refusal(g, request.member_id, request.instance_id, request.generation)
    or known.open == ordinal and known.pieces >= group.PIECES and code.INVALID_REQUEST
  if refusal or #request.offsets == 0 then
    group.save(g)
    return refusal or code.NONE
  elseif not group.exists(g) then
    if request.id == '' then
      return code.UNINDEXED
    end
    group.found(g, request.id, request.locator, retention)
  elseif group.is(g, 'Empty') then
    group.set(g, 'retention', retention)
    group.set(g, 'expires_at', g.now + retention)
  end
  hold(g, keys[7], request, known) -- first write
  return code.NONE
end
redis.register_function{
  function_name = 'korvet_group_txn_commit',
  callback = group.txn_commit,
  flags = { 'allow-oom' },
  description = 'hold offsets that a transaction commits when it is committed',
}

-- The partitions of committed offsets, [`topic:partition`, topic_id, ...].
local function committed_partitions(offsets)
  local partitions = {}
  for at = 1, #offsets, 2 do
    partitions[at] = offsets[at]
    partitions[at + 1] = string.match(offsets[at + 1], '^%S+ %S+ (%S*)') or ''
  end
  return partitions
end

-- Whether an end has nothing to do: its transaction was ended, or is older than the open one.
local function is_ended(known, ordinal)
  return ordinal < known.closed or ordinal < known.open or known.open < 0 and ordinal == known.closed
end

-- End an open transaction as far as one call may. Returns the offsets that become committed.
local function release(g, pending_key, producer_id, known, is_committed)
  if known.open < 0 then
    return {}
  end
  if is_committed and group.is(g, 'Empty') then
    group.set(g, 'expires_at', g.now + (g.fields.retention or 0))
  end
  return group.end_pieces(g, pending_key, producer_id, known, is_committed)
end

-- Close a transaction if all its pieces are ended. Returns whether they are.
local function close(g, pending_key, producer_id, known)
  if known.open >= 0 and known.done < known.pieces then
    group.note_pieces(pending_key, producer_id, known)
    return false
  end
  group.remove_pieces(pending_key, producer_id, known)
  if known.open >= 0 and group.exists(g) then
    group.set(g, 'transactions', math.max((g.fields.transactions or 0) - 1, 0))
  end
  known.open = -1
  return true
end

-- group_txn_end: commit or forget the offsets that a transaction holds
-- The holds of an older transaction that was never ended are forgotten.
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- KEYS[6] attached hash  topic:partition -> id of the topic with a Redis group there
-- KEYS[7] pending  hash  producer id -> its transactions and the offsets of the open one
-- ARGV[1] producer_id   ARGV[2] ordinal of the transaction   ARGV[3] decision   commit or abort
-- Returns {code, [`topic:partition`, topic_id, ...]}, the partitions whose offsets this call committed, and 1 behind
-- them if others are left: call again; may be repeated
-- Bound: 3000 offsets a call
-- Source: OffsetMetadataManager.replayEndTransactionMarker
function group.txn_end(keys, args)
  local asked = group.arguments(keys, args, 'group_txn_end: producer_id ordinal:int decision', 2)
  local producer_id, ordinal, decision = asked.producer_id, asked.ordinal, asked.decision
  if decision ~= 'commit' and decision ~= 'abort' then
    error('decision is neither commit nor abort: ' .. decision, 0)
  end
  local pending_key = keys[7]
  local known = group.pending_of(pending_key, producer_id)
  if is_ended(known, ordinal) then
    return { code.NONE, {} }
  end
  local g, is_new = group.open_beside(keys), known.closed < 0
  local epoch = string.match(redis.call('HGET', pending_key, producer_id) or '-1', '^%-?%d+')
  local is_committed = decision == 'commit' and known.open == ordinal
  local offsets = release(g, pending_key, producer_id, known, is_committed) -- first write
  local is_done = close(g, pending_key, producer_id, known)
  known.closed = ordinal
  group.save(g)
  redis.call('HSET', pending_key, producer_id, log.transaction_entry(epoch, known))
  if is_new then
    group.sweep_pending(pending_key, g.now)
  end
  if (g.fields.transactions or 0) == 0 then
    group.void_pending(pending_key, '~', g.now)
  end
  -- A front-end of the former version reads two elements and no more.
  return { code.NONE, committed_partitions(offsets), not is_done and 1 or nil }
end
redis.register_function{
  function_name = 'korvet_group_txn_end',
  callback = group.txn_end,
  flags = { 'allow-oom' },
  description = 'commit or forget the offsets that a transaction holds',
}

-- group_txn_check: whether a group still holds the offsets of an open transaction
-- KEYS[1] pending hash  producer id -> its transactions and the offsets of the open one
-- ARGV[1] joined   the replication id under which the group came into the transaction, or ''
-- Returns code
-- Codes: TRANSACTION_ABORTABLE (history changed since)
function group.txn_check(_, args)
  local joined = value.arguments(args, 'group_txn_check: joined').joined
  local is_held = joined == '' or joined == server.ask_replid()
  return is_held and code.NONE or code.TRANSACTION_ABORTABLE
end
redis.register_function{
  function_name = 'korvet_group_txn_check',
  callback = group.txn_check,
  flags = { 'no-writes', 'allow-oom' },
  description = 'whether a group still holds the offsets of an open transaction',
}

-- group_transactions: the open transactions whose offsets a group holds
-- KEYS[1] pending hash  producer id -> its transactions and the offsets of the open one
-- ARGV[1] cursor   0 at first
-- Returns {cursor, [[producer_id, ordinal, transactional_id], ...]}; call again with the cursor until it is '0'
-- Bound: 100 producers a call
function group.transactions(keys, args)
  local cursor, open = value.arguments(args, 'group_transactions: cursor').cursor, {}
  local scanned = redis.call('HSCAN', keys[1], cursor, 'COUNT', 100)
  local flat = scanned[2]
  for at = 1, #flat, 2 do
    local is_open = string.find(flat[at], '^%d') and string.find(flat[at + 1], '^%-?%d+ %-?%d+ %d')
    local known = is_open and group.pending_of(keys[1], flat[at])
    if known and known.open >= 0 then
      open[#open + 1] = { tonumber(flat[at]), known.open, known.transactional_id }
    end
  end
  return { scanned[1], open }
end
redis.register_function{
  function_name = 'korvet_group_transactions',
  callback = group.transactions,
  flags = { 'no-writes', 'allow-oom' },
  description = 'the open transactions whose offsets a group holds',
}
