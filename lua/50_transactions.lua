-- Transactional ids: which producer holds one, and what becomes of its transaction. Source: TransactionCoordinator,
-- TransactionMetadata, TransactionState.
--
-- The id hash: state; producer_id, producer_epoch; last_producer_id and last_producer_epoch, those before, by which a
-- repeated call is known; next_producer_id while a decision whose epoch is the last one is finished; timeout_ms;
-- ordinal of the present or last transaction; marker_epoch of the decision; started_ms, updated_ms; run_id of the
-- server on which the producer id was taken;
-- `p:topic:partition` -> topic id and `g:group` -> '', what the transaction touches.
--
-- The deadlines zset: transactional id -> ms at which something of it is due, all ids of the shard. The member of the
-- empty name is the last ordinal that was handed out, which as a time is never due. Ordinals are microseconds since
-- 1970, so that a history that went back hands none out again.
--
-- What producers ask for says until when their front-end was served, as with groups: one that stood still, or whose
-- call waited while Redis did, may have been given up by its producer, which went on elsewhere. Such a call does
-- nothing (LATE), for a producer of version 1 has the same epoch in its next transaction.
--
-- A decision is finished by whoever comes: a marker in each partition, the offsets of each group, and then
-- txn_complete; each step may be repeated, and is known by the ordinal. A decision that is a second old is anybody's.
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
  -- Fields of the id hash, and whether they are numbers.
  FIELDS = {
    { 'state' }, { 'producer_id', true }, { 'producer_epoch', true }, { 'last_producer_id', true },
    { 'last_producer_epoch', true }, { 'next_producer_id', true }, { 'timeout_ms', true }, { 'ordinal', true },
    { 'marker_epoch', true }, { 'started_ms', true }, { 'updated_ms', true }, { 'run_id' },
  },
  -- The outcome that a state stands for.
  DECISIONS = {
    PrepareCommit = 'commit', PrepareAbort = 'abort', CompleteCommit = 'commit', CompleteAbort = 'abort',
  },
  -- No producer has a greater epoch than the one before the last: with the last one a coordinator fences it.
  LAST_EPOCH = 32767,
  -- How long who made a decision has to finish it, and how long nobody tries at the longest where that fails.
  GRACE_MS = 1000,
  MOST_GRACE_MS = 10000,
}

-- The id's state, read from its hash; without fields.state there is none. Keys of the wrong type fail here, while
-- nothing is written.
function transaction.open(keys)
  if keys[2] then
    redis.call('ZCARD', keys[2])
  end
  local names = {}
  for at, field in ipairs(transaction.FIELDS) do
    names[at] = field[1]
  end
  local values = redis.call('HMGET', keys[1], unpack(names))
  local fields = {}
  for at, field in ipairs(transaction.FIELDS) do
    fields[field[1]] = values[at] and (field[2] and tonumber(values[at]) or values[at]) or nil
  end
  return { keys = keys, now = value.now_ms(), fields = fields }
end

function transaction.is_prepared(t)
  return t.fields.state == 'PrepareCommit' or t.fields.state == 'PrepareAbort'
end

function transaction.is_exhausted(epoch)
  return epoch >= transaction.LAST_EPOCH - 1
end

-- The run id of this server.
function transaction.server()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

-- Whether the producer id was taken on another server, or before this one began anew. What came after that may be lost
-- here and kept by partitions on other nodes, so that no higher epoch of that producer id is known to be unused.
function transaction.is_of_former_server(t)
  return t.fields.run_id ~= transaction.server()
end

-- An ordinal above all that were handed out before.
function transaction.next_ordinal(t)
  local last = tonumber(redis.call('ZSCORE', t.keys[2], '') or -1)
  return math.max(last + 1, t.fields.ordinal and t.fields.ordinal + 1 or 0, clock.now_us())
end

-- The id's state becomes another one, of which something is due at a time; fields are name -> number, or text.
function transaction.move(t, transactional_id, state, fields, due)
  local before = t.fields.state
  if before and not transaction.STATES[state][before] then
    error('a transaction cannot become ' .. state .. ' from ' .. before, 0)
  end
  local changes = { 'state', state, 'updated_ms', value.integer(t.now) }
  for name, field in pairs(fields) do
    changes[#changes + 1] = name
    changes[#changes + 1] = type(field) == 'number' and value.integer(field) or field
    t.fields[name] = field
  end
  t.fields.state, t.fields.updated_ms = state, t.now
  redis.call('HSET', t.keys[1], unpack(changes)) -- first write
  redis.call('ZADD', t.keys[2], value.integer(due), transactional_id)
  if fields.ordinal then
    redis.call('ZADD', t.keys[2], value.integer(fields.ordinal), '')
  end
end

-- What the transaction touches: partitions as place, topic id, ..., and groups; sorted.
function transaction.touched(t)
  local places, groups = {}, {}
  local all = value.pairs(redis.call('HGETALL', t.keys[1]))
  for name in pairs(all) do
    local kind, rest = string.match(name, '^([pg]):(.*)$')
    local names = kind == 'p' and places or groups
    names[#names + 1] = rest
  end
  table.sort(places)
  table.sort(groups)
  local flat = {}
  for _, place in ipairs(places) do
    flat[#flat + 1] = place
    flat[#flat + 1] = all['p:' .. place]
  end
  return flat, groups
end

-- Forget what the transaction touched.
function transaction.forget(t)
  local names = {}
  for name in pairs(value.pairs(redis.call('HGETALL', t.keys[1]))) do
    if string.find(name, '^[pg]:') then
      names[#names + 1] = name
    end
  end
  group.in_batches('HDEL', t.keys[1], names)
end

-- The decision that is to be finished: {ordinal, producer_id, marker_epoch, 'commit' or 'abort', [place, topic_id,
-- ...], [group, ...]}; nil where there is none.
function transaction.decision(t)
  if not transaction.is_prepared(t) then
    return nil
  end
  local fields = t.fields
  local places, groups = transaction.touched(t)
  local decision = transaction.DECISIONS[fields.state]
  return { fields.ordinal, fields.producer_id, fields.marker_epoch, decision, places, groups }
end

-- Decide. The epoch of the markers is greater than that of what was written, unless a producer of before transaction
-- version 2 goes on with its own. With a fresh id, the producer goes on with that one when the decision is finished.
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
  if fresh_id then
    fields.run_id = transaction.server()
  end
  if t.fields.state ~= 'Ongoing' then
    fields.started_ms = t.now
    fields.ordinal = transaction.next_ordinal(t)
  end
  local state = decision == 'commit' and 'PrepareCommit' or 'PrepareAbort'
  transaction.move(t, transactional_id, state, fields, t.now + transaction.GRACE_MS)
end

-- Abort an Ongoing transaction on behalf of nobody in particular; who wrote it is fenced by the epoch.
function transaction.fence(t, transactional_id)
  transaction.prepare(t, transactional_id, 'abort', true)
end

-- An argument that is one of two words.
function transaction.one_of(text, one, other, name)
  if text ~= one and text ~= other then
    error(name .. ' is neither ' .. one .. ' nor ' .. other .. ': ' .. tostring(text), 0)
  end
  return text
end
