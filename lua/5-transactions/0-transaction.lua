-- Transactional ids: the producer that holds an id, and the state of its transaction. Source: TransactionCoordinator,
-- TransactionMetadata, TransactionState.
--
-- The id hash has these fields:
-- state
-- producer_id, producer_epoch
-- last_producer_id, last_producer_epoch  the former ones, which identify a repeated call
-- next_producer_id  while a decision with the last epoch is finished
-- timeout_ms, started_ms, updated_ms
-- ordinal  of the present or last transaction
-- marker_epoch  of the decision
-- replid  the replication id under which the producer id was taken
-- history  the replication id under which the last decision was made, or the epoch was given out
-- told  the replication id under which the producer heard that history changed
-- lost  the ordinal of a transaction that was aborted because a part of it was lost
-- paged  1 while some members of a decision are finished and forgotten, and others are not
-- `p:topic:partition` -> `topic_id history` and `g:group` -> ` history`  the members of the transaction, each with the
-- replication id of its server when it joined. A member that an older version added has none
--
-- A transaction's members may lose a part of it, and so may its shard. A changed history is the only sign of a lost
-- part. So a transaction is committed only if its shard and its members have the same replication ids as before. For
-- a member, that is the id when it joined. For the shard, it is the id at the decision before, because the beginning of
-- the transaction may be lost. Otherwise the transaction is aborted. The front-end that ends a transaction asks its
-- members first (CHECK).
--
-- The deadlines zset holds all ids of the shard: transactional id -> ms of its next due work. The member with
-- the empty name has the last ordinal as its score. As a time in ms, that is never due. Ordinals are microseconds since
-- 1970, so a history that went back gives no ordinal out again.
--
-- Producers' calls say until when Redis served their front-end, as calls of groups do. If a front-end or Redis stood
-- still, the producer may have gone on at another front-end. Such a call does nothing (LATE), because a producer of
-- version 1 has the same epoch in its next transaction.
--
-- Any front-end may finish a decision: a marker in each partition, the offsets of each group, and then txn_complete.
-- Each step carries the ordinal, and may be repeated. After a second, any front-end gets the unfinished decision.
local transaction = {
  -- State -> the states before it.
  STATES = {
    Empty = { Empty = true, CompleteCommit = true, CompleteAbort = true },
    Ongoing = { Ongoing = true, Empty = true, CompleteCommit = true, CompleteAbort = true },
    PrepareCommit = { Ongoing = true },
    PrepareAbort = { Ongoing = true, Empty = true, CompleteCommit = true, CompleteAbort = true },
    CompleteCommit = { PrepareCommit = true },
    CompleteAbort = { PrepareAbort = true },
  },
  -- Fields of the id hash; true for numbers.
  FIELDS = {
    { 'state' }, { 'producer_id', true }, { 'producer_epoch', true }, { 'last_producer_id', true },
    { 'last_producer_epoch', true }, { 'next_producer_id', true }, { 'timeout_ms', true }, { 'ordinal', true },
    { 'marker_epoch', true }, { 'started_ms', true }, { 'updated_ms', true }, { 'replid' }, { 'history' },
    { 'lost', true }, { 'paged' }, { 'told' },
  },
  -- State -> its decision.
  DECISIONS = {
    PrepareCommit = 'commit', PrepareAbort = 'abort', CompleteCommit = 'commit', CompleteAbort = 'abort',
  },
  -- Only a coordinator has this epoch, to fence a producer with the epoch before it.
  LAST_EPOCH = 32767,
  -- How long the front-end of a decision has to finish it, and the longest pause before another try.
  GRACE_MS = 1000,
  MOST_GRACE_MS = 10000,
  -- Members that one call reads from the id hash. A transaction with more is finished in steps.
  MEMBERS = 500,
}

-- True if somebody removed fields by hand. There is no such id then, and the next producer takes it anew.
function transaction.is_cut(keys, fields)
  for _, name in ipairs({ 'state', 'producer_id', 'producer_epoch', 'timeout_ms', 'updated_ms' }) do
    if fields[name] == nil then
      return redis.call('EXISTS', keys[1]) == 1
    end
  end
  return false
end

-- Move the times of an id back if the clock went back.
function transaction.turn_back(t)
  t.back_ms = value.set_back_ms(t.fields.updated_ms, t.now)
  if t.back_ms > 0 then
    t.fields.updated_ms = t.now
    t.fields.started_ms = math.max((t.fields.started_ms or -1) - t.back_ms, -1)
  end
end

-- Read an id's hash. Returns its fields, and as size the number of its transaction's members. Without fields.state the
-- id does not exist. Keys of the wrong type fail here, before any write.
function transaction.open(keys)
  if keys[2] then
    redis.call('ZCARD', keys[2])
  end
  local names = {}
  for at, field in ipairs(transaction.FIELDS) do
    names[at] = field[1]
  end
  local values = redis.call('HMGET', keys[1], unpack(names))
  local fields, count = {}, 0
  for at, field in ipairs(transaction.FIELDS) do
    fields[field[1]] = values[at] and (field[2] and tonumber(values[at]) or values[at]) or nil
    count = count + (values[at] and 1 or 0)
  end
  if transaction.is_cut(keys, fields) then
    return { keys = keys, now = value.now_ms(), fields = {}, size = 0, back_ms = 0, is_cut = true }
  end
  local t = { keys = keys, now = value.now_ms(), fields = fields, size = redis.call('HLEN', keys[1]) - count }
  transaction.turn_back(t)
  return t
end

function transaction.is_prepared(t)
  return t.fields.state == 'PrepareCommit' or t.fields.state == 'PrepareAbort'
end

function transaction.is_exhausted(epoch)
  return epoch >= transaction.LAST_EPOCH - 1
end

-- True if the producer id was taken on another server, or before this server restarted or was promoted. The shard may
-- have lost later epochs that partitions on other nodes kept. So no higher epoch of the id is known to be unused.
function transaction.is_of_former_server(t)
  return t.fields.replid ~= server.replid()
end

-- True if the shard may have lost calls since the last decision, or since the epoch was given out.
function transaction.is_of_former_history(t)
  return t.fields.history ~= nil and t.fields.history ~= server.ask_replid()
end

-- True if the producer knows of the present history, because no other came before or a reply reported it. A producer
-- that aborts by itself has not heard that its former calls may be lost. It hears that with its next transaction. Nor
-- has an application after a refused verification of its batch: aiokafka reports that only if it awaits the batch.
function transaction.is_told(t)
  return not transaction.is_of_former_history(t) or t.fields.told == server.ask_replid()
end

-- An ordinal above all former ordinals of the shard.
function transaction.next_ordinal(t)
  local last = tonumber(redis.call('ZSCORE', t.keys[2], '') or -1)
  return math.max(last + 1, t.fields.ordinal and t.fields.ordinal + 1 or 0, clock.now_us())
end

-- Give an id another state and the time of its next work; fields are name -> number, or text.
function transaction.move(t, transactional_id, state, fields, due)
  local before = t.fields.state
  if before and not transaction.STATES[state][before] then
    error('a transaction cannot become ' .. state .. ' from ' .. before, 0)
  end
  local changes = { 'state', state, 'updated_ms', value.integer(t.now) }
  if t.back_ms > 0 and not fields.started_ms then
    fields.started_ms = t.fields.started_ms
  end
  for name, field in pairs(fields) do
    changes[#changes + 1] = name
    changes[#changes + 1] = type(field) == 'number' and value.integer(field) or field
    t.fields[name] = field
  end
  t.fields.state, t.fields.updated_ms = state, t.now
  if t.is_cut then
    redis.call('UNLINK', t.keys[1]) -- first write
  end
  redis.call('HSET', t.keys[1], unpack(changes)) -- first write
  redis.call('ZADD', t.keys[2], value.integer(due), transactional_id)
  if fields.ordinal then
    redis.call('ZADD', t.keys[2], value.integer(fields.ordinal), '')
  end
end

-- Some members from a cursor on, name -> `topic_id history`, and the cursor after them, '0' at the end.
function transaction.some_members(t, cursor)
  local members, count = {}, 0
  repeat
    local wanted = math.max(transaction.MEMBERS - count, 50)
    local scanned = redis.call('HSCAN', t.keys[1], cursor, 'COUNT', wanted)
    cursor = scanned[1]
    for at = 1, #scanned[2], 2 do
      if string.find(scanned[2][at], '^[pg]:') then
        members[scanned[2][at]] = scanned[2][at + 1]
        count = count + 1
      end
    end
  until cursor == '0' or count >= transaction.MEMBERS
  return members, cursor
end

-- Members in the form of replies: [partition, topic_id, ...] and [group, ...], both sorted.
function transaction.told_members(members)
  local partitions, groups = {}, {}
  for name in pairs(members) do
    local names = string.sub(name, 1, 1) == 'p' and partitions or groups
    names[#names + 1] = string.sub(name, 3)
  end
  table.sort(partitions)
  table.sort(groups)
  local flat = {}
  for _, partition in ipairs(partitions) do
    flat[#flat + 1] = partition
    flat[#flat + 1] = string.match(members['p:' .. partition], '^%S*')
  end
  return flat, groups
end

-- Forget members by their names.
function transaction.forget(t, names)
  for first = 1, #names, transaction.MEMBERS do
    local last = math.min(first + transaction.MEMBERS - 1, #names)
    t.size = t.size - redis.call('HDEL', t.keys[1], unpack(names, first, last))
  end
end

-- The unfinished decision: {ordinal, producer_id, marker_epoch, 'commit' or 'abort', [partition, topic_id, ...],
-- [group, ...]}, and the present ms; nil if there is none. The reply names further members when these are finished.
function transaction.decision(t)
  if not transaction.is_prepared(t) then
    return nil
  end
  local fields = t.fields
  local partitions, groups = transaction.told_members((transaction.some_members(t, '0')))
  local decision = transaction.DECISIONS[fields.state]
  return { fields.ordinal, fields.producer_id, fields.marker_epoch, decision, partitions, groups }, t.now
end

-- Make a decision. The markers have a greater epoch than the batches, unless a producer of transaction version 1 goes
-- on with its epoch. With a fresh id, the producer goes on with that id when the decision is finished.
-- Source: TransactionMetadata.prepareAbortOrCommit, prepareFenceProducerEpoch
function transaction.prepare(t, transactional_id, decision, raises_epoch, fresh_id)
  local epoch = t.fields.producer_epoch
  local fields = {}
  if raises_epoch then
    fields.last_producer_epoch = epoch
    fields.producer_epoch = math.min(epoch + 1, transaction.LAST_EPOCH)
  end
  fields.last_producer_id = t.fields.producer_id
  fields.marker_epoch = fields.producer_epoch or epoch
  fields.next_producer_id = fresh_id or -1
  if transaction.is_told(t) then
    fields.history = server.replid()
  end
  if fresh_id then
    fields.replid = server.replid()
  end
  if t.fields.state ~= 'Ongoing' then
    fields.started_ms = t.now
    fields.ordinal = transaction.next_ordinal(t)
  end
  local state = decision == 'commit' and 'PrepareCommit' or 'PrepareAbort'
  transaction.move(t, transactional_id, state, fields, t.now + transaction.GRACE_MS)
end

-- Abort an Ongoing transaction that its producer did not end. The raised epoch fences that producer.
function transaction.fence(t, transactional_id)
  transaction.prepare(t, transactional_id, 'abort', true)
end
