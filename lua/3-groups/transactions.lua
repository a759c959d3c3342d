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
  elseif group.is_share(g) then
    return code.GROUP_ID_NOT_FOUND
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

korvet.define({
  name = 'group_txn_commit', flags = { 'allow-oom' },
  description = 'hold offsets that a transaction commits when it is committed',
  keys = [[
    @group   attached hash topic:partition -> id of the topic with a Redis group there
    pending hash producer id -> its transactions and the offsets of the open one
  ]],
  args = [[
    outages   id of a new group, '' while it is not in the index   locator   member_id or ''   instance_id or ''
    generation:int or -1   retention:int ms   producer_id   producer_epoch:int   ordinal:int of the transaction
    transactional_id   offsets*2<=2000 `topic:partition`, `offset leader_epoch topic_id metadata`, ...
  ]],
  returns = 'code; may be repeated',
  codes = [[LATE, UNINDEXED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND (of a share
    group), INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE (the transaction of the ordinal was ended here), INVALID_REQUEST
    (it holds as many offsets as it may)]],
  source = 'OffsetMetadataManager.commitTransactionalOffset',
}, function(keys, request)
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
end)

-- The partitions of committed offsets, [`topic:partition`, topic_id, ...].
local function committed_partitions(offsets)
  local partitions = {}
  for at = 1, #offsets, 2 do
    partitions[at] = offsets[at]
    partitions[at + 1] = string.match(offsets[at + 1], '^%S+ %S+ (%S*)') or ''
  end
  return partitions
end

-- True if an end has nothing to do: its transaction was ended, or is older than the open one.
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

-- Close a transaction if all its pieces are ended. Returns true if they are.
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

korvet.define({
  name = 'group_txn_end', flags = { 'allow-oom' },
  description = 'commit or forget the offsets that a transaction holds',
  keys = [[
    @group   attached hash topic:partition -> id of the topic with a Redis group there
    pending hash producer id -> its transactions and the offsets of the open one
  ]],
  args = 'producer_id   ordinal:int of the transaction   decision commit or abort',
  returns = [[{code, [`topic:partition`, topic_id, ...]}, the partitions whose offsets this call committed, and 1 behind
    them if others are left: call again; may be repeated]],
  bound = '3000 offsets a call',
  source = 'OffsetMetadataManager.replayEndTransactionMarker',
  notes = 'The holds of an older transaction that was never ended are forgotten.',
}, function(keys, params)
  local producer_id, ordinal, decision = params.producer_id, params.ordinal, params.decision
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
end)

korvet.define({
  name = 'group_txn_check', flags = { 'no-writes', 'allow-oom' },
  description = 'whether a group still holds the offsets of an open transaction',
  keys = 'pending hash producer id -> its transactions and the offsets of the open one',
  args = "joined the replication id under which the group came into the transaction, or ''",
  returns = 'code',
  codes = 'TRANSACTION_ABORTABLE (history changed since)',
}, function(_, params)
  local joined = params.joined
  local is_held = joined == '' or joined == server.ask_replid()
  return is_held and code.NONE or code.TRANSACTION_ABORTABLE
end)

korvet.define({
  name = 'group_transactions', flags = { 'no-writes', 'allow-oom' },
  description = 'the open transactions whose offsets a group holds',
  keys = 'pending hash producer id -> its transactions and the offsets of the open one',
  args = 'cursor 0 at first',
  returns = "{cursor, [[producer_id, ordinal, transactional_id], ...]}; call again with the cursor until it is '0'",
  bound = '100 producers a call',
}, function(keys, params)
  local cursor, open = params.cursor, {}
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
end)
