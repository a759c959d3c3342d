-- The log of one partition: a stream of record batches, stored as they came and known by the offset just past them.
--
-- Entry id = `<offset just past the batch>-0`. Field `i` is the entry's index, `b` the batch; a batch without `b` is
-- placed: it lies at key `<log>:<offset just past the batch>`, or at the one that field `p` names in the place of the
-- offset, where compaction wrote it. In a topic of records an entry is one record, and its third field `r`; see
-- 2a_log_records.lua. The index is a text of integers, of which records is the span of offsets:
--   records size max_timestamp running_max_timestamp running_bytes running_batches leader_epoch crc
-- The meta hash: topic_id; run_id of the server that began the leader epoch; start, end, epoch; epochs, a text
-- `epoch:start_offset,...`, oldest first; totals, a text `running_max_timestamp running_bytes running_batches` of the
-- last entry; first_open, the first offset of the open transactions, absent where there is none; last_aborted, the
-- last offset of the last aborted transaction; records, what Redis users may add, absent where nothing. A batch without
-- timestamps (max_timestamp below 0) raises the running maximum to the time of its append. The last stable offset is
-- first_open, else end.
--
-- The log's channel carries `leader_epoch end`, and behind it the last stable offset where that is another.
local log = {}

-- Entries read at most in one call.
log.STEP = 100
-- 2020-01-01 in seconds since 1970: where the leader epochs of restarted servers begin to count.
log.EPOCHS_SINCE_S = 1577836800
-- What the text of a number below zero begins with.
log.MINUS = 45

-- Where a batch lies that is not in its entry.
function log.placed_key(log_key, place)
  return log_key .. ':' .. place
end

-- The offset just past an entry's batch, as text.
function log.next_offset(entry)
  return (string.match(entry[1], '^%d+'))
end

-- What an entry's index says: records, own max_timestamp, running max_timestamp; numbers.
function log.times(entry)
  local fields = entry[2]
  local index = fields[1] == 'i' and fields[2]
  local records, own, running = string.match(index or '', '^(%d+) %d+ (%-?%d+) (%-?%d+) ')
  if not records then
    error('entry ' .. entry[1] .. ' is not one of korvet\'s', 0)
  end
  return tonumber(records), tonumber(own), tonumber(running)
end

-- What names the key of the entry's batch, which see log.placed_key; nil where the batch lies in the entry.
function log.place_of(entry)
  local fields = entry[2]
  if fields[3] == 'p' then
    return fields[4]
  end
  return not fields[3] and log.next_offset(entry) or nil
end

-- Make the keys of a partition's transactions, each with a member of the empty name below all others.
function log.make_transaction_keys(keys)
  redis.call('ZADD', keys[4], -1, '')
  redis.call('ZADD', keys[5], -1, '')
  redis.call('HSETNX', keys[6], '', '0')
end

-- log_create: make the keys of a partition
-- KEYS[1] log       stream  record batches
-- KEYS[2] meta      hash    identity, offsets, epochs, totals
-- KEYS[3] producers hash    producer id -> last batches
-- KEYS[4] open zset (optional) producer id -> first offset of its open transaction
-- KEYS[5] aborted zset (optional) `first last producer_id stable` by the last offset
-- KEYS[6] transactions hash (optional) producer id -> `epoch closed_ordinal open_ordinal transactional_id`
-- ARGV[1] topic_id   ARGV[2] run_id
-- Returns {code}; may be repeated
-- Codes: GONE (keys of another topic, or of one that is being deleted, are still there)
function log.create(keys, args)
  local log_key, meta_key, producers_key = keys[1], keys[2], keys[3]
  local topic_id = redis.call('HGET', meta_key, 'topic_id')
  if topic_id == args[1] then
    return { code.NONE }
  end
  if redis.call('EXISTS', unpack(keys)) > 0 then
    return { code.GONE }
  end
  -- An empty stream. All keys of a unit exist together, because a slot migration refuses calls that find only some of
  -- them.
  redis.call('XGROUP', 'CREATE', log_key, 'korvet', '0', 'MKSTREAM') -- first write
  redis.call('XGROUP', 'DESTROY', log_key, 'korvet')
  redis.call('HSET', producers_key, '', '0 0 0 0')
  if keys[4] then
    log.make_transaction_keys(keys)
  end
  redis.call(
    'HSET', meta_key, 'topic_id', args[1], 'run_id', args[2],
    'start', 0, 'end', 0, 'epoch', 0, 'epochs', '0:0', 'totals', '-1 0 0'
  )
  return { code.NONE }
end
redis.register_function{
  function_name = 'korvet_log_create',
  callback = log.create,
  description = 'make the keys of a partition',
}
