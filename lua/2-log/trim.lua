-- Trims and deletions. A trim moves the log start up and removes batches that lie wholly below it. Offsets are never
-- used again, because an emptied stream keeps its last id.

-- The epochs text for a log that starts at an offset. As LeaderEpochFileCache.truncateFromStart: the last epoch that
-- began at or below it now begins there, and the epochs before that are forgotten.
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

-- Remove these entries, the first of the stream, and their placed batches.
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

-- Aborted transactions that one call forgets, at most.
log.MOST_FORGOTTEN = 1000

-- Forget a bounded number of aborted transactions that ended below an offset. Returns true if some are left.
function log.forget_aborted(aborted_key, offset)
  local below = '(' .. value.integer(offset)
  local last = redis.call(
    'ZRANGEBYSCORE', aborted_key, 0, below, 'WITHSCORES', 'LIMIT', log.MOST_FORGOTTEN - 1, 1
  )
  redis.call('ZREMRANGEBYSCORE', aborted_key, 0, last[2] or below)
  return last[2] ~= nil
end

-- The code that refuses a trim by its meta hash, or nil; and the log start.
function log.trim_refusal(meta, params)
  if meta[1] ~= params.topic_id then
    return code.GONE, -1
  elseif params.epoch and params.epoch ~= meta[5] then
    return code.FENCED_LEADER_EPOCH, tonumber(meta[2])
  elseif params.offset < -1 or params.offset > tonumber(meta[3]) then
    return code.OFFSET_OUT_OF_RANGE, tonumber(meta[2])
  end
  return nil, tonumber(meta[2])
end

korvet.define({
  name = 'log_trim', flags = { 'allow-oom' },
  description = 'raise the log start and remove a bounded number of batches below it',
  keys = [[
    @log   open? zset producer id -> first offset of its open transaction
    aborted? zset `first last producer_id stable` by the last offset
    transactions? hash producer id -> `epoch closed_ordinal open_ordinal transactional_id`
  ]],
  args = [[
    topic_id   offset:int the new log start, or -1 for the end
    epoch? the leader epoch in which the offset was chosen: in another epoch it is of another history
  ]],
  returns = [[{code, log_start, more}; more is 1 while batches or aborted transactions may be left to remove: call
    again]],
  bound = '100 entries a call; about 1 MiB, and 1000 aborted transactions',
  codes = 'GONE, FENCED_LEADER_EPOCH, OFFSET_OUT_OF_RANGE',
  source = 'Partition.deleteRecordsOnLeader, UnifiedLog.maybeIncrementLogStartOffset',
}, function(keys, params)
  local meta = redis.call(
    'HMGET', keys[2], 'topic_id', 'start', 'end', 'epochs', 'epoch', 'local_start', 'tier_end'
  )
  local refusal, log_start = log.trim_refusal(meta, params)
  if refusal then
    return { refusal, log_start, 0 }
  end
  local tier_key = meta[7] and log.tier_key(keys[1])
  for _, zset in pairs({ keys[5], tier_key or nil }) do
    redis.call('ZCARD', zset)
  end
  local new_start = math.max(log_start, params.offset == -1 and tonumber(meta[3]) or params.offset)
  local held_from = tier.held_from(new_start, meta[6])
  local below, is_more = log.page(keys[1], '-', value.integer(held_from) .. '-0')
  if new_start > log_start then
    local epochs = log.epochs_from(meta[4], new_start)
    redis.call('HSET', keys[2], 'start', value.integer(new_start), 'epochs', epochs) -- first write
    if tier_key then
      tier.note_start(tier_key, params.topic_id, new_start)
    end
    -- No epoch and no end: front-ends ask again before they trust what they remember.
    redis.call('SPUBLISH', keys[1], '-1 -1')
  end
  is_more = keys[5] and log.forget_aborted(keys[5], held_from) or is_more
  log.drop(keys[1], below)
  return { code.NONE, new_start, is_more and 1 or 0 }
end)

-- The key of the stream that compaction builds beside the log.
function log.spare_key(log_key)
  return log_key .. ':spare'
end

-- The key that holds compaction's notes of that stream's Redis groups.
function log.copies_key(spare_key)
  return spare_key .. ':groups'
end

-- Remove the first entries of the stream beside the log, and their placed batches unless the log names them.
-- Returns true if entries are left.
function log.discard_spare(log_key, spare_key)
  local entries, is_more = log.page(spare_key, '-', '+')
  local own = {}
  for _, entry in ipairs(entries) do
    local place = log.place_of(entry)
    -- A placed entry is short.
    local live = place and redis.call('XRANGE', log_key, entry[1], entry[1])[1]
    if place and not (live and log.place_of(live) == place) then
      own[#own + 1] = log.placed_key(log_key, place)
    end
  end
  if #own > 0 then
    redis.call('UNLINK', unpack(own))
  end
  if not is_more then
    redis.call('UNLINK', spare_key, log.copies_key(spare_key))
    return false
  end
  redis.call('XTRIM', spare_key, 'MINID', '=', log.next_offset(entries[#entries]) .. '-1')
  return true
end

-- The keys of a partition's inlet, and of the entries that were refused.
function log.inlet_key(log_key)
  return (string.gsub(log_key, 'log$', 'in'))
end

function log.refused_key(inlet_key)
  return inlet_key .. ':refused'
end

-- Remove a bounded number of a log's share partitions (7-shares/0-share.lua). Returns true if some are left.
function log.discard_shares(log_key)
  local shares_key = (string.gsub(log_key, 'log$', 'shares'))
  if not log.is_of(shares_key, 'hash') then
    redis.call('UNLINK', shares_key)
    return false
  end
  local cursor, headers
  repeat
    cursor, headers = unpack(redis.call('HSCAN', shares_key, cursor or '0', 'COUNT', log.STEP))
  until #headers > 0 or cursor == '0'
  for at = 1, math.min(#headers, 2 * log.STEP), 2 do
    redis.call('UNLINK', string.gsub(log_key, 'log$', 'share:') .. headers[at])
    redis.call('HDEL', shares_key, headers[at])
  end
  return redis.call('EXISTS', shares_key) == 1
end

-- True if a key is missing or of a type.
function log.is_of(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end

-- Remove keys of a partition that have another type: a foreign key keeps no topic from being deleted.
function log.remove_foreign(keys)
  for _, pair in ipairs({ { keys[1], 'stream' }, { log.spare_key(keys[1]), 'stream' }, { keys[2], 'hash' } }) do
    if not log.is_of(pair[1], pair[2]) then
      redis.call('UNLINK', pair[1])
    end
  end
end

korvet.define({
  name = 'log_delete', flags = { 'allow-oom' },
  description = 'remove a partition, a bounded number of batches at a time',
  keys = [[
    @log   open? zset producer id -> first offset of its open transaction
    aborted? zset `first last producer_id stable` by the last offset
    transactions? hash producer id -> `epoch closed_ordinal open_ordinal transactional_id`
  ]],
  args = 'topic_id',
  returns = [[{code, more}; more is 1 while something is left: call again; may be repeated, and leaves another topic's
    keys alone]],
  bound = '100 entries a call; about 1 MiB, and as many beside the log',
  source = 'LogManager.asyncDelete',
}, function(keys, params)
  local log_key, meta_key, topic_id = keys[1], keys[2], params.topic_id
  local meta = log.is_of(meta_key, 'hash') and redis.call('HMGET', meta_key, 'topic_id', 'deleting') or {}
  local owner = meta[1] or meta[2]
  if owner and owner ~= topic_id then
    return { code.NONE, 0 }
  end
  log.remove_foreign(keys) -- first write
  local entries, is_more = log.page(log_key, '-', '+')
  log.drop(log_key, entries)
  local is_last = not is_more and not log.discard_spare(log_key, log.spare_key(log_key))
    and not log.discard_shares(log_key)
  if is_last then
    local inlet_key = log.inlet_key(log_key)
    redis.call('UNLINK', inlet_key, log.refused_key(inlet_key), log.tier_key(log_key), unpack(keys))
  else
    redis.call('HDEL', meta_key, 'topic_id')
    redis.call('HSET', meta_key, 'deleting', topic_id)
  end
  if meta[1] then
    redis.call('SPUBLISH', log_key, '-1 -1')
  end
  return { code.NONE, is_last and 0 or 1 }
end)
