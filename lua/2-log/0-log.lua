-- The log of one partition: a stream of record batches, stored as they came.
--
-- An entry's id is `<offset just past the batch>-0`. Field `i` is the entry's index, and `b` the batch. A batch without
-- `b` is placed: it lies at the key `<log>:<offset just past the batch>`. If compaction wrote it, field `p` stands in
-- the entry, with the name that takes the offset's place in the key. In a topic of records an entry is one record, and
-- its third field is `r`; see 2-log/3-records.lua. The index is a text of integers; records is the span of offsets:
--   records size max_timestamp running_max_timestamp running_bytes running_batches leader_epoch crc
-- The meta hash: topic_id; run_id of the server that began the leader epoch, and replid, its replication id then;
-- start, end, epoch; epochs, a text `epoch:start_offset,...`, oldest first; totals, a text `running_max_timestamp
-- running_bytes running_batches` of the last entry; first_open, the first offset of the open transactions, absent if
-- none is open; last_aborted, the last offset of the last aborted transaction; records, the rules for records that
-- Redis users add, absent if they may add none. A batch without timestamps (max_timestamp below 0) raises the running
-- maximum to the time of its append. The last stable offset is first_open, else end. A partition with segments has the
-- fields tier, tier_end and local_start too; see 2-log/tier.lua.
--
-- The log's channel carries `leader_epoch end`, then the last stable offset if it differs from the end.
local log = {}

-- One call reads at most STEP entries, PAGE of them at once, and about STEP_BYTES: a record lies in its entry however
-- long it is.
log.STEP = 100
log.PAGE = 10
log.STEP_BYTES = 1048576
-- 2020-01-01 in seconds since 1970. Leader epochs of restarted servers count the seconds from then.
log.EPOCHS_SINCE_S = 1577836800
-- The first byte of the text of a number below zero.
log.MINUS = 45

-- The key of a placed batch.
function log.placed_key(log_key, place)
  return log_key .. ':' .. place
end

-- The entries between two ids, as many as one call reads, and true if more may follow. It reads the first alone.
function log.page(key, from, to)
  local found, bytes = {}, 0
  while #found < log.STEP and bytes < log.STEP_BYTES do
    local count = math.min(#found + 1, log.PAGE, log.STEP - #found)
    local page = redis.call('XRANGE', key, from, to, 'COUNT', count)
    for _, entry in ipairs(page) do
      found[#found + 1] = entry
      for _, text in ipairs(entry[2]) do
        bytes = bytes + #text
      end
    end
    if #page < count then
      return found, false
    end
    from = '(' .. page[#page][1]
  end
  return found, true
end

-- The offset just past an entry's batch, as text.
function log.next_offset(entry)
  return (string.match(entry[1], '^%d+'))
end

-- From an entry's index: records, its own max_timestamp, running max_timestamp; numbers.
function log.times(entry)
  local fields = entry[2]
  local index = fields[1] == 'i' and fields[2]
  local records, own, running = string.match(index or '', '^(%d+) %d+ (%-?%d+) (%-?%d+) ')
  if not records then
    error('entry ' .. entry[1] .. ' is not one of korvet\'s', 0)
  end
  return tonumber(records), tonumber(own), tonumber(running)
end

-- The last part of the name of the placed batch's key (see log.placed_key); nil if the batch lies in the entry.
function log.place_of(entry)
  local fields = entry[2]
  if fields[3] == 'p' then
    return fields[4]
  end
  return not fields[3] and log.next_offset(entry) or nil
end

-- The key of a partition's segments, which exists from the first one on.
function log.tier_key(log_key)
  return (string.gsub(log_key, 'log$', 'tier'))
end

-- Make the keys of a partition's transactions, each with a member of the empty name below all others.
function log.make_transaction_keys(keys)
  redis.call('ZADD', keys[4], -1, '')
  redis.call('ZADD', keys[5], -1, '')
  redis.call('HSETNX', keys[6], '', '0')
end

korvet.define({
  name = 'log_create',
  description = 'make the keys of a partition, and its meta hash from its log if somebody deleted that alone',
  keys = [[
    @log   open? zset producer id -> first offset of its open transaction
    aborted? zset `first last producer_id stable` by the last offset
    transactions? hash producer id -> `epoch closed_ordinal open_ordinal transactional_id`
  ]],
  args = 'topic_id   run_id   kept? given if the tier may hold its records',
  returns = '{code}; may be repeated',
  codes = [[GONE (keys of another topic, or of one that is being deleted, still exist), LOST (nothing is left, or only
    the list of its segments, and offset 0 must not begin anew)]],
}, function(keys, params)
  local log_key, meta_key, producers_key = keys[1], keys[2], keys[3]
  local topic_id = redis.call('HGET', meta_key, 'topic_id')
  if topic_id == params.topic_id then
    return { code.NONE }
  end
  local tier_key = log.tier_key(log_key)
  if redis.call('EXISTS', meta_key) == 0 and redis.call('EXISTS', log_key) == 1 then
    return { log.rebuild_meta(keys, params.topic_id, tier_key) }
  elseif redis.call('EXISTS', tier_key, unpack(keys)) > 0 then
    local has_segments = redis.call('EXISTS', meta_key) == 0 and redis.call('ZSCORE', tier_key, params.topic_id)
    return { has_segments and code.LOST or code.GONE }
  elseif params.kept then
    return { code.LOST }
  end
  -- XGROUP makes an empty stream. All keys of a unit exist together, because Redis refuses a call during a slot
  -- migration if only some of its keys exist.
  redis.call('XGROUP', 'CREATE', log_key, 'korvet', '0', 'MKSTREAM') -- first write
  -- Share partitions of a log that somebody removed by hand would pass over as many records as they had finished.
  redis.call('UNLINK', (string.gsub(log_key, 'log$', 'shares')))
  redis.call('XGROUP', 'DESTROY', log_key, 'korvet')
  redis.call('HSET', producers_key, '', '0 0 0 0')
  if keys[4] then
    log.make_transaction_keys(keys)
  end
  redis.call(
    'HSET', meta_key, 'topic_id', params.topic_id, 'run_id', params.run_id, 'replid', server.replid(),
    'start', 0, 'end', 0, 'epoch', 0, 'epochs', '0:0', 'totals', '-1 0 0'
  )
  return { code.NONE }
end)
