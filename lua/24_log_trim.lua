-- The log start moves up, and what lies wholly below it goes; offsets are never used again (an emptied stream keeps
-- its last id).

-- The epochs text for a log that starts at an offset. As LeaderEpochFileCache.truncateFromStart: the last epoch that
-- began at or below it now begins there, and those before it are forgotten.
function log.epochs_from(epochs, start)
  local kept = {}
  local below
  for epoch, known_start in string.gmatch(epochs, '(%d+):(%d+)') do
    if tonumber(known_start) <= start then
      below = epoch
    else
      kept[#kept + 1] = epoch .. ':' .. known_start
    end
  end
  if below then
    table.insert(kept, 1, below .. ':' .. value.integer(start))
  end
  return table.concat(kept, ',')
end

-- Remove the first entries of the stream, which are these, and their placed batches.
function log.drop(log_key, entries)
  if #entries == 0 then
    return
  end
  local placed = {}
  for _, entry in ipairs(entries) do
    local place = log.place_of(entry)
    if place then
      placed[#placed + 1] = log.placed_key(log_key, place)
    end
  end
  if #placed > 0 then
    redis.call('UNLINK', unpack(placed))
  end
  redis.call('XTRIM', log_key, 'MINID', '=', log.next_offset(entries[#entries]) .. '-1')
end

-- log_trim: move the log start up and remove a bounded number of batches below it
-- KEYS[1] log       stream  record batches
-- KEYS[2] meta      hash    identity, offsets, epochs, totals
-- KEYS[3] producers hash    producer id -> last batches
-- KEYS[4] open zset (optional) producer id -> first offset of its open transaction
-- KEYS[5] aborted zset (optional) `first last producer_id stable` by the last offset
-- KEYS[6] transactions hash (optional) producer id -> `epoch closed_ordinal open_ordinal transactional_id`
-- ARGV[1] topic_id   ARGV[2] offset   the new log start, or -1 for the end
-- ARGV[3] epoch  (optional) the leader epoch in which the offset was chosen: in another one it is another history's
-- Returns {code, log_start, more}; more is 1 while batches may be left to remove: call again
-- Codes: GONE, FENCED_LEADER_EPOCH, OFFSET_OUT_OF_RANGE
-- Source: Partition.deleteRecordsOnLeader, UnifiedLog.maybeIncrementLogStartOffset
function log.trim(keys, args)
  local offset = value.number(args[2], 'offset')
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'start', 'end', 'epochs', 'epoch')
  if meta[1] ~= args[1] then
    return { code.GONE, -1, 0 }
  end
  local log_start, log_end = tonumber(meta[2]), tonumber(meta[3])
  if args[3] and args[3] ~= meta[5] then
    return { code.FENCED_LEADER_EPOCH, log_start, 0 }
  end
  if offset < -1 or offset > log_end then
    return { code.OFFSET_OUT_OF_RANGE, log_start, 0 }
  end
  if keys[5] then
    redis.call('ZCARD', keys[5])
  end
  local new_start = math.max(log_start, offset == -1 and log_end or offset)
  local below = redis.call('XRANGE', keys[1], '-', value.integer(new_start) .. '-0', 'COUNT', log.STEP)
  if new_start > log_start then
    local epochs = log.epochs_from(meta[4], new_start)
    redis.call('HSET', keys[2], 'start', value.integer(new_start), 'epochs', epochs) -- first write
    -- No epoch and no end: who follows the log asks before it trusts what it remembers.
    redis.call('SPUBLISH', keys[1], '-1 -1')
    if keys[5] then
      redis.call('ZREMRANGEBYSCORE', keys[5], 0, '(' .. value.integer(new_start))
    end
  end
  log.drop(keys[1], below)
  return { code.NONE, new_start, #below == log.STEP and 1 or 0 }
end
redis.register_function{
  function_name = 'korvet_log_trim',
  callback = log.trim,
  flags = { 'allow-oom' },
  description = 'move the log start up and remove a bounded number of batches below it',
}

-- Where compaction has a stream beside the log.
function log.spare_key(log_key)
  return log_key .. ':spare'
end

-- Remove the first entries of the stream beside the log, and the placed batches that are not the log's as well. Returns
-- whether some are left.
function log.discard_spare(log_key, spare_key)
  local entries = redis.call('XRANGE', spare_key, '-', '+', 'COUNT', log.STEP)
  local own = {}
  for _, entry in ipairs(entries) do
    local place = log.place_of(entry)
    local live = place and redis.call('XRANGE', log_key, entry[1], entry[1])[1]
    if place and not (live and log.place_of(live) == place) then
      own[#own + 1] = log.placed_key(log_key, place)
    end
  end
  if #own > 0 then
    redis.call('UNLINK', unpack(own))
  end
  if #entries < log.STEP then
    redis.call('UNLINK', spare_key)
    return false
  end
  redis.call('XTRIM', spare_key, 'MINID', '=', log.next_offset(entries[#entries]) .. '-1')
  return true
end

-- Where Redis users put records for a partition, and where those lie that were not taken.
function log.inlet_key(log_key)
  return (string.gsub(log_key, 'log$', 'in'))
end

function log.refused_key(inlet_key)
  return inlet_key .. ':refused'
end

-- log_delete: remove a partition, a bounded number of batches at a time
-- KEYS[1] log       stream  record batches
-- KEYS[2] meta      hash    identity, offsets, epochs, totals
-- KEYS[3] producers hash    producer id -> last batches
-- KEYS[4] open zset (optional) producer id -> first offset of its open transaction
-- KEYS[5] aborted zset (optional) `first last producer_id stable` by the last offset
-- KEYS[6] transactions hash (optional) producer id -> `epoch closed_ordinal open_ordinal transactional_id`
-- ARGV[1] topic_id
-- Returns {code, more}; more is 1 while something is left: call again; may be repeated, and leaves another topic's
-- keys alone
-- Source: LogManager.asyncDelete
function log.delete(keys, args)
  local log_key, meta_key, topic_id = keys[1], keys[2], args[1]
  local meta = redis.call('HMGET', meta_key, 'topic_id', 'deleting')
  local owner = meta[1] or meta[2]
  if owner and owner ~= topic_id then
    return { code.NONE, 0 }
  end
  local entries = redis.call('XRANGE', log_key, '-', '+', 'COUNT', log.STEP)
  local is_last = #entries < log.STEP
  log.drop(log_key, entries) -- first write
  is_last = is_last and not log.discard_spare(log_key, log.spare_key(log_key))
  if is_last then
    local inlet_key = log.inlet_key(log_key)
    redis.call('UNLINK', inlet_key, log.refused_key(inlet_key), unpack(keys))
  elseif meta[1] then
    redis.call('HDEL', meta_key, 'topic_id')
    redis.call('HSET', meta_key, 'deleting', topic_id)
  end
  if meta[1] then
    redis.call('SPUBLISH', log_key, '-1 -1')
  end
  return { code.NONE, is_last and 0 or 1 }
end
redis.register_function{
  function_name = 'korvet_log_delete',
  callback = log.delete,
  flags = { 'allow-oom' },
  description = 'remove a partition, a bounded number of batches at a time',
}
