-- Acquisition: what is due, then available ranges, then offsets that were never acquired.

-- Begin a share partition anew at its start: somebody removed its ranges, or the log ends before it.
function share.begin_anew(s)
  local start = math.min(s.start, s.log_end)
  redis.call('UNLINK', s.keys[4])
  redis.call('ZADD', s.keys[4], '-inf', '')
  local letters = s.letters
  for name, field in pairs(share.fresh(s.id, start, s.now)) do
    s[name] = field
  end
  s.letters = letters
  s.announced = true
  share.flush(s)
end

-- Forget offsets below the log start, whatever was done with them. Source: SharePartition.updateCacheAndOffsets
function share.follow_log_start(s)
  for _, base in ipairs({ 0, -share.AVAILABLE, share.AVAILABLE }) do
    local below = redis.call(
      'ZRANGEBYSCORE', s.keys[4], value.integer(base), '(' .. value.integer(base + s.log_start), 'LIMIT', 0, share.MOST
    )
    for _, text in ipairs(below) do
      local r = share.range(s, text)
      share.remove(s, r)
      if r.last >= s.log_start then
        share.add_part(s, r, s.log_start, r.last)
      end
    end
  end
  s.next, s.moves = math.max(s.next, s.log_start), true
  share.flush(s)
end

-- End the locks and delays that are over, of at most so many ranges as one call reads. Returns how many records were
-- locked.
-- Source: SharePartition.releaseAcquisitionLockOnTimeout
function share.sweep(s, params)
  if s.now < s.due then
    return 0
  end
  local texts = redis.call(
    'ZRANGEBYSCORE', s.keys[4], value.integer(s.swept), share.BELOW_ARCHIVING, 'LIMIT', 0, share.MOST
  )
  local expired, r = 0, nil
  s.least = s.swept > 0 and s.least or share.NEVER
  for _, text in ipairs(texts) do
    r = share.range(s, text)
    local is_over, ends = share.is_over(s, r)
    if not is_over then
      s.least = math.min(s.least, ends)
    elseif r.state == 'acquired' then
      share.remove(s, r)
      share.give_back(s, r, r.first, r.last, r.count, params)
      expired = expired + r.last - r.first + 1
    else
      share.remove(s, r)
      share.add_available(s, r.first, r.last, r.count, r)
      s.announced = true
    end
  end
  if #texts == share.MOST then
    s.swept, s.due = r.last + 1, s.now
  else
    local next_ms = math.max(share.SWEEP_MS, redis.call('ZCARD', s.keys[4]))
    s.swept, s.due = 0, s.least == share.NEVER and s.least or math.max(s.least, s.now + next_ms)
  end
  share.flush(s)
  return expired
end

-- Take offsets for the caller. Neighbours that came together and have one count become one range again.
function share.take(taking, first, last, count, size)
  local before = taking[#taking]
  taking.count = taking.count + last - first + 1
  if before and before.last + 1 == first and before.count == count and before.size == size
    and last - before.first < size then
    before.last = last
  else
    taking[#taking + 1] = { first = first, last = last, count = count, size = size }
  end
end

-- How many offsets of an available range to take, and true if nothing may come after them. A record that was delivered
-- often may be what its consumers die of. So it comes with half as many others each time, and the last time alone.
-- Source: SharePartition.acquireSubsetBatchRecords, shouldThrottleRecordsDelivery
function share.portion(r, taking, limit)
  local length, suspect = r.last - r.first + 1, math.max(2, math.ceil(limit / 2))
  local most = taking.in_records and taking.most - taking.count or length
  if r.count < suspect then
    return math.min(length, most), false
  elseif taking.count > 0 then
    return 0, true
  end
  local is_last_time = limit > 2 and r.count >= limit - 1
  local isolated = is_last_time and 1 or math.max(1, math.floor(r.size / 2 ^ (r.count - suspect + 1)))
  return math.min(isolated, length, most), true
end

-- Take available ranges. Returns true if nothing else may come with them.
function share.take_available(s, taking, limit)
  local seen, is_last = 0, false
  while s.available > 0 and taking.count < taking.most and seen < share.MOST and not is_last do
    local page = share.available(s, seen, share.PAGE)
    for _, text in ipairs(page) do
      local r = share.range(s, text)
      local length
      length, is_last = share.portion(r, taking, limit)
      if length > 0 then
        share.remove(s, r)
        share.take(taking, r.first, r.first + length - 1, r.count + 1, r.size)
        if r.first + length <= r.last then
          share.add_part(s, r, r.first + length, r.last)
        end
      end
      if is_last or taking.count >= taking.most then
        break
      end
    end
    seen = seen + #page
    if #page < share.PAGE then
      break
    end
  end
  return is_last
end

-- The batch of a log entry: its first offset, the offset after it, and the running bytes before and after it.
function share.batch(entry)
  local records = log.times(entry)
  local size, running = string.match(entry[2][2], '^%d+ (%d+) %-?%d+ %-?%d+ (%d+) ')
  local next_offset = tonumber(log.next_offset(entry))
  return { first = next_offset - records, next = next_offset, before = running - size, running = tonumber(running) }
end

-- The offset up to which new offsets are taken: of whole batches, or exactly up to most_next, within max_bytes but at
-- least the first batch.
function share.new_until(s, first_batch, most_next, params)
  while most_next > first_batch.next do
    local entry = log.entry_above(s.keys[1], most_next - 1)
    local batch = entry and share.batch(entry)
    -- If no batch has this offset, compaction removed it.
    local is_gap = not batch or batch.first >= most_next
    local running = batch and (is_gap and batch.before or batch.running) or 0
    if params.max_bytes < 0 or running - first_batch.before <= params.max_bytes then
      return (is_gap or params.mode == 'records') and most_next or batch.next
    end
    most_next = first_batch.next + math.floor((most_next - first_batch.next) / 2)
  end
  return params.mode == 'records' and most_next or first_batch.next
end

-- How many further offsets may be in flight. Kafka counts all from the start on, finished or not. If records may wait
-- for times ahead, these would hold up all others: then only offsets that are not finished count.
function share.room(s, params, taken)
  return params.window - (params.times == 1 and s.tracked + taken or s.next - s.start)
end

-- Take offsets that were never acquired.
function share.take_new(s, taking, params)
  local readable = params.isolation == 'committed' and s.stable or s.log_end
  local wanted = math.min(taking.most - taking.count, share.room(s, params, taking.count))
  if wanted <= 0 or s.next >= readable then
    return
  end
  local until_offset = s.next + wanted
  if s.next >= s.held_from then
    local entry = log.entry_above(s.keys[1], s.next)
    local batch = entry and share.batch(entry) or { first = readable, next = readable }
    if batch.first > s.next then
      -- Nothing is left of the offsets before it, so they are finished.
      local skipped_from = s.next
      s.next = math.min(batch.first, readable)
      share.finish(s, skipped_from)
    end
    until_offset = math.min(s.next + wanted, readable)
    if until_offset > s.next then
      until_offset = share.new_until(s, batch, until_offset, params)
    end
  end
  until_offset = math.min(until_offset, readable)
  if until_offset > s.next then
    share.take(taking, s.next, until_offset - 1, 1, until_offset - s.next)
    s.next = until_offset
  end
end

-- Find the start of a share partition that has none. Returns false if the caller has to find it.
-- Source: SharePartition.startOffsetDuringInitialization
function share.find_start(s, reset)
  if s.start >= 0 then
    return true
  end
  local named = { earliest = s.log_start, latest = s.log_end }
  local start = named[reset] or tonumber(reset)
  if not start then
    return false
  end
  s.start = math.max(s.log_start, math.min(start, s.log_end))
  s.next = s.start
  return true
end

-- ms until something may become available of itself: 0 if it is now, -1 if nothing will.
function share.wait_ms(s, params)
  local readable = params.isolation == 'committed' and s.stable or s.log_end
  if s.available > 0 or s.due <= s.now or s.next < readable and share.room(s, params, 0) > 0 then
    return 0
  end
  local due = s.archiving > 0 and math.min(s.due, s.now + share.ARCHIVING_MS) or s.due
  return due == share.NEVER and -1 or due - s.now
end

-- Do what is due before an acquisition. Returns how many records were locked too long.
function share.prepare(s, params)
  if s.next > s.log_end or s.tracked > 0 and redis.call('ZCARD', s.keys[4]) < 2 then
    share.begin_anew(s) -- first write
  end
  if s.start < s.log_start then
    share.follow_log_start(s)
  end
  return share.sweep(s, params)
end

-- The ranges that a call takes, {first, last, count, size}, in memory.
function share.taken(s, params)
  local taking = { count = 0, most = params.max_records, in_records = params.mode == 'records' }
  if not share.take_available(s, taking, params.limit) then
    share.take_new(s, taking, params)
  end
  if share.room(s, params, taking.count) <= 0 then
    s.full = math.max(s.full, params.times == 1 and 2 or 1)
  end
  return taking
end

-- The lock of a call, or of an earlier one that it renews.
function share.lock(s, params, nonce)
  local lasts = params.lock_ms
  return { ends = s.now + lasts, lasts = lasts, nonce = nonce or params.nonce, member = params.member }
end

korvet.define({
  name = 'share_acquire', flags = { 'allow-oom' },
  description = 'acquire records of a share partition for a member, after the locks that are over',
  keys = '@share',
  args = [[
    outages   topic_id   group its id   member   nonce of its connection, without blanks   max_records:int
    max_bytes:int -1 for any number; the first batch always fits
    mode:batches|records if whole batches are acquired, also beyond max_records, or exactly so many records
    isolation:uncommitted|committed   lock_ms:ms   limit:int of deliveries   window:int of offsets in flight
    backoff_ms:ms after which a record comes a second time; twice as long each time
    backoff_most_ms:ms the longest of these times
    dead_letters:int 1 if records that failed wait for share_dead_letters, 0 if they are finished
    reset earliest, latest or an offset: where a share partition without a start begins; '' if the caller does not know
    times:int? 1 if records may wait for times ahead: then only offsets that are not finished count as in flight
    acknowledgements*3<=3000 as for share_acknowledge, of the same connection: they come first
  ]],
  returns = [=[{code, start, next, [first, last, count, ...], wait_ms, expired, archiving, now_ms, acknowledged}: the
    acquired ranges by their offsets, with the number of this delivery. wait_ms is the time after which more may be
    available of itself, 0 if it may be now, -1 if nothing will; the group's id comes on the channel of shares when
    something becomes available otherwise. expired records were locked too long; archiving is the number of ranges of
    dead letters. acknowledged is the code of share_acknowledge, RETRY if that has to be called; records come even if it
    is not 0]=],
  bound = '1000 acknowledgements, 1000 available and 2000 acquired ranges, and 15 entries of the log',
  codes = 'GONE, LATE, GROUP_ID_NOT_FOUND (the group has no state here), RETRY (it has no start yet: find the offset)',
  source = 'SharePartition.acquire, nextFetchOffset, lastOffsetAndMaxRecordsToAcquire',
  notes = [[Below the local start the batches are not known, so exactly max_records are acquired. Offsets without a
    record are acquired, unless none is left before the next batch: the caller acknowledges them as gaps. What it cannot
    send it gives back as undelivered.]],
}, function(keys, params)
  if group.is_late(params.outages) then
    return { code.LATE, -1, -1, {}, -1, 0, 0, -1, code.LATE }
  end
  local s, refusal = share.open(keys, params)
  if refusal then
    return { refusal, -1, -1, {}, -1, 0, 0, -1, refusal }
  elseif not share.find_start(s, params.reset) then
    return { code.RETRY, -1, -1, {}, -1, 0, 0, -1, code.RETRY }
  end
  s.outages, s.letters = group.outages(params.outages, s.now), params.dead_letters == 1 and 1 or 0
  local acknowledged, must_announce = code.NONE, nil
  if #params.acknowledgements > 0 then
    acknowledged = share.acknowledge(s, params)
    must_announce = s.announced
    share.flush(s) -- first write
  end
  local expired = share.prepare(s, params)
  local taken, lock = share.taken(s, params), share.lock(s, params)
  local acquired = {}
  for _, r in ipairs(taken) do
    share.add_timed(s, 'acquired', r.first, r.last, r.count, r, lock)
    acquired[#acquired + 1], acquired[#acquired + 2], acquired[#acquired + 3] = r.first, r.last, r.count
  end
  s.announced = must_announce or (s.announced and share.wait_ms(s, params) == 0)
  share.save(s)
  local wait_ms = share.wait_ms(s, params)
  return { code.NONE, s.start, s.next, acquired, wait_ms, expired, s.archiving, s.now, acknowledged }
end)
