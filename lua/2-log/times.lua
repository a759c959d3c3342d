-- Offsets by time. The running maximum in the entries' indexes never falls, so a bisection finds the first batch that
-- reaches a time. If a trim removed the batch that raised the maximum, the later entries are looked at one by one.

-- ListOffsets' name for the batch with the greatest timestamp.
log.MAX_TIMESTAMP = -3

-- The first entry that ends above an offset, or nil.
function log.entry_above(log_key, offset)
  return redis.call('XRANGE', log_key, '(' .. value.integer(offset) .. '-0', '+', 'COUNT', 1)[1]
end

-- The first entry between two offsets with a running maximum that reaches a timestamp, or nil.
function log.bisect(log_key, low, log_end, timestamp)
  local found
  local high = log_end
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = log.entry_above(log_key, middle)
    local next_offset = entry and tonumber(log.next_offset(entry))
    if not entry or next_offset > log_end then
      -- The log's last entry was removed because it could not be read.
      high = middle
    else
      local records, _, running = log.times(entry)
      if running >= timestamp then
        -- In a log with gaps the entry may begin above the middle.
        found, high = entry, math.min(middle, next_offset - records)
      else
        low = next_offset
      end
    end
  end
  return found
end

function log.by_time(status, entry, log_start)
  return { code.NONE, status, log.next_offset(entry), entry[2][2], log_start }
end

-- True if an entry reaches a timestamp. With undated, a batch without timestamps does if the running maximum does,
-- because that is not below the time of its append.
function log.reaches(entry, timestamp, undated)
  local _, own, running = log.times(entry)
  return own >= timestamp or undated and own < 0 and running >= timestamp
end

-- The next entries above an offset, without any that a foreign client added above the end.
function log.step_above(log_key, from, log_end)
  return log.page(log_key, '(' .. from .. '-0', log_end .. '-0')
end

-- Look at entries one by one, from an offset on, for one with an own maximum that reaches the timestamp.
function log.scan_for_time(log_key, from, timestamp, log_start, log_end, undated)
  local entries, is_more = log.step_above(log_key, from, log_end)
  for _, entry in ipairs(entries) do
    if log.reaches(entry, timestamp, undated) then
      return log.by_time('found', entry, log_start)
    end
  end
  if not is_more then
    return { code.NONE, 'none', '-1', '', log_start }
  end
  return { code.NONE, 'more', log.next_offset(entries[#entries]), '', log_start }
end

-- Look at all entries for the greatest own maximum; the cursor also carries the offset just past the best one so far,
-- and its time.
function log.scan_for_max(log_key, from, best, best_timestamp, log_start, log_end)
  local entries, is_more = log.step_above(log_key, from, log_end)
  for _, entry in ipairs(entries) do
    local _, own = log.times(entry)
    if best == '' or own > best_timestamp then
      best, best_timestamp = log.next_offset(entry), own
    end
  end
  if is_more then
    local cursor = log.next_offset(entries[#entries]) .. ' ' .. best .. ' ' .. value.integer(best_timestamp)
    return { code.NONE, 'more', cursor, '', log_start }
  end
  local entry = best ~= '' and redis.call('XRANGE', log_key, best .. '-0', best .. '-0')[1]
  if entry then
    return log.by_time('found', entry, log_start)
  end
  -- The best one was trimmed between two calls, or there is none at all.
  return { code.NONE, best == '' and 'none' or 'more', '-1', '', log_start }
end

korvet.define({
  name = 'log_offset_for_time', flags = { 'no-writes', 'allow-oom' },
  description = 'find the first batch in Redis with a timestamp not earlier than the given one',
  keys = 'log stream record batches   meta hash identity, offsets, epochs, totals',
  args = [[
    topic_id   timestamp:int ms, or -3 for the batch with the greatest   cursor -1 at first
    undated? given to find batches without timestamps by the time of their append, else ''
    local_start:int? the caller looked for what is below it in segments
  ]],
  returns = [[{code, status, position, index, log_start}; status: found (position is the offset just past the batch) |
    none | more (nothing yet; call again with cursor = position)]],
  bound = '100 entries a call; about 1 MiB',
  codes = 'GONE, RETRY (the local start is larger by now, and earlier records may be in segments)',
  source = 'UnifiedLog.fetchOffsetByTimestamp, LogSegment.findOffsetByTimestamp',
}, function(keys, params)
  local timestamp, undated = params.timestamp, (params.undated or '') ~= ''
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'start', 'end', 'totals', 'local_start')
  if meta[1] ~= params.topic_id then
    return { code.GONE, 'none', '-1', '', -1 }
  elseif tonumber(meta[5] or 0) > (params.local_start or math.huge) then
    return { code.RETRY, 'none', '-1', '', -1 }
  end
  local log_start = tonumber(meta[2])
  local is_max = timestamp == log.MAX_TIMESTAMP
  local from, best, best_timestamp = string.match(params.cursor, '^(%d+) ?(%d*) ?(%-?%d*)$')
  if from and is_max then
    return log.scan_for_max(keys[1], from, best, tonumber(best_timestamp), log_start, meta[3])
  elseif from then
    return log.scan_for_time(keys[1], from, timestamp, log_start, meta[3], undated)
  end
  if is_max then
    timestamp = tonumber(string.match(meta[4], '^%S+'))
  end
  local entry = log.bisect(keys[1], log_start, tonumber(meta[3]), timestamp)
  if not entry then
    return { code.NONE, 'none', '-1', '', log_start }
  end
  if log.reaches(entry, timestamp, undated) then
    return log.by_time('found', entry, log_start)
  elseif is_max then
    return log.scan_for_max(keys[1], meta[2], '', -1, log_start, meta[3])
  end
  return log.scan_for_time(keys[1], log.next_offset(entry), timestamp, log_start, meta[3], undated)
end)
