-- Queues: Redis clients take and settle the records of a share group, beside Kafka's share consumers, in topics of
-- records. A worker is a name that the client chooses; it has no session, so only locks end what a dead one holds.
local queue = { MOST = 100, LIMIT = 5, WINDOW = 2000, FORGOTTEN_MS = 60000, MOST_ABORTED = 1000 }

-- The outages that front-ends told this server. If none called for a minute, there is no front-end, and no outage.
function queue.outages(now)
  local served, spans = string.match(server.told or '', '^(%d+)(.*)$')
  if served and now - served > queue.FORGOTTEN_MS then
    return value.integer(now) .. spans
  end
  return server.told or ''
end

-- The share partition of a worker's call with what is needed of the meta hash, or an error's text.
function queue.open(keys, params)
  local unit = string.match(keys[1], '^(.*)log$')
  local ours = unit and { unit .. 'log', unit .. 'meta', unit .. 'shares', unit .. 'share:' .. params.group } or {}
  if table.concat(keys, ' ', 1, 4) ~= table.concat(ours, ' ') then
    return nil, 'ERR the keys are not those of a partition and of the group ' .. params.group
  end
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'records')
  if not (meta[1] and meta[2]) then
    return nil, 'ERR not a partition of a topic with korvet.storage=record'
  end
  local denied = recorded.denied({
    { 'ZADD', keys[4], '0', '' }, { 'ZREM', keys[4], '' }, { 'ZRANGEBYSCORE', keys[4], '0', '0' },
    { 'ZRANGE', keys[4], '0', '0' }, { 'ZCARD', keys[4] }, { 'UNLINK', keys[4] },
    { 'HSET', keys[3], '', '' }, { 'SPUBLISH', keys[3], '' }, { 'XRANGE', keys[1], '-', '+' },
  })
  if denied then
    return nil, 'NOPERM the user may not call ' .. denied .. ' for this queue'
  end
  params.topic_id, params.member, params.nonce = meta[1], params.worker, ''
  local s, refusal = share.open(keys, params)
  if not s and refusal == code.GROUP_ID_NOT_FOUND and params.reset then
    local now = value.now_ms()
    redis.call('UNLINK', keys[4]) -- first write
    redis.call('ZADD', keys[4], '-inf', '')
    redis.call('HSET', keys[3], params.group, share.header(share.fresh(share.NO_GROUP, -1, now)))
    s = share.open(keys, params)
  end
  if not s then
    return nil, 'ERR no worker took anything for the group ' .. params.group .. ' yet'
  end
  s.outages, params.dead_letters = group.outages(queue.outages(s.now), s.now), s.letters
  return s
end

-- True if a producer's transaction with a record at an offset was aborted.
function queue.is_aborted(s, offset, producer_id)
  s.aborted = s.aborted or redis.call(
    'ZRANGEBYSCORE', string.gsub(s.keys[1], 'log$', 'aborted') .. '', value.integer(offset), '+inf',
    'LIMIT', 0, queue.MOST_ABORTED
  )
  for _, text in ipairs(s.aborted) do
    local first, last, of = string.match(text, '^(%d+) (%d+) (%d+) ')
    if of == producer_id and tonumber(first) <= offset and offset <= tonumber(last) then
      return true
    end
  end
  return false
end

-- The time before which nobody gets a record, by its last header of a name; nil if it is no time ahead. Sweeps are no
-- finer than SWEEP_MS, and neighbours of one time are one range.
function queue.not_before(s, fields, name)
  local found
  for at = 5, #fields, 2 do
    if fields[at] == name then
      found = tonumber(string.match(fields[at + 1], '^%d+$'))
    end
  end
  local is_ahead = found and found > s.now and found <= s.now + definition.LONGEST_MS
  return is_ahead and math.ceil(found / share.SWEEP_MS) * share.SWEEP_MS or nil
end

-- What an entry is to a worker: `record`, `nothing` (a marker, or a record that was aborted), or `batch`.
function queue.kind(s, entry, offset)
  local fields = entry[2]
  if fields[3] == 'r' then
    local attributes, producer_id = string.match(fields[4], '^(%d+) (%-?%d+) ')
    local is_aborted = bit.band(tonumber(attributes), 0x10) ~= 0 and queue.is_aborted(s, offset, producer_id)
    return is_aborted and 'nothing' or 'record'
  end
  local is_marker = fields[3] == 'b' and bit.band(string.byte(fields[4], 23) or 0, 0x20) ~= 0
  return is_marker and 'nothing' or 'batch'
end

-- The records of taken ranges, each {offset, count, size, entry, not_before}; and the first offset that does not fit
-- into one answer or that lies in a batch, and true if it lies in a batch. Nothing is written.
function queue.read(s, taken, time_header)
  local header = time_header and 'header.' .. time_header
  local found, bytes = {}, 0
  for _, r in ipairs(taken) do
    local from = r.first
    repeat
      local to = value.integer(r.last + 1) .. '-0'
      local entries, is_more = log.page(s.keys[1], value.integer(from + 1) .. '-0', to)
      for _, entry in ipairs(entries) do
        local next_offset = tonumber(log.next_offset(entry))
        local kind = queue.kind(s, entry, next_offset - 1)
        if bytes > log.STEP_BYTES or kind == 'batch' then
          return found, math.max(next_offset - log.times(entry), r.first), kind == 'batch'
        elseif kind == 'record' then
          local not_before = header and queue.not_before(s, entry[2], header)
          found[#found + 1] = {
            offset = next_offset - 1, count = r.count, entry = entry, size = r.size, not_before = not_before,
          }
          for _, text in ipairs(entry[2]) do
            bytes = bytes + #text
          end
        end
        from = next_offset
      end
    until not is_more
  end
  return found, nil
end

-- Give back what was taken from an offset on, in memory.
function queue.cut(s, taken, cut, next_before)
  for _, r in ipairs(taken) do
    local first = math.max(r.first, cut)
    if first <= r.last and r.first < next_before then
      share.add_available(s, first, r.last, r.count - 1, r)
    end
  end
  s.next = math.max(next_before, math.min(s.next, cut))
end

-- Add records as acquired ranges, in memory, or as delayed ones.
function queue.acquire(s, found, lock)
  local r
  for at = 1, #found + 1 do
    local one = found[at]
    if r and one and one.offset == r.last + 1 and one.count == r.count and one.size == r.size
      and one.not_before == r.not_before then
      r.last = one.offset
    else
      if r and r.not_before then
        share.put_back(s, r, r.first, r.last, r.count - 1, r.not_before)
      elseif r then
        share.add_timed(s, 'acquired', r.first, r.last, r.count, r, lock)
      end
      r = one and {
        first = one.offset, last = one.offset, count = one.count, size = one.size, not_before = one.not_before,
      }
    end
  end
end

korvet.define({
  name = 'queue_take', flags = { 'allow-oom' },
  description = 'take records of a queue for a worker, from Redis',
  keys = '@share',
  args = [[
    group id of a share group, which need not exist   worker any name   count:int at most, up to 100
    lock_ms:ms after which others may take them   limit:int? of deliveries, 5 by default
    reset:earliest|latest? where a queue begins that was never taken from, earliest by default
    time_header? of records that nobody gets before a time: ms since 1970, at most 30 days ahead
  ]],
  returns = [=[{wait_ms, [offset, deliveries, timestamp, [field, value, ...]], ...}: the fields as the log's entry has
    them. wait_ms is the time after which there may be more without a message, 0 for now, -1 for never; the group's id
    comes on the channel of shares, and each append on the log's. An error if the topic is not one of records, the next
    offset lies in a batch, or the user lacks a right]=],
  bound = '100 records, about 1 MiB and one record; 1000 available and 1000 acquired ranges; 1000 aborted transactions',
  source = 'SharePartition.acquire',
  notes = [[Records of open transactions are not taken, nor are those of aborted ones. Below the local start nothing is
    taken: Kafka's share consumers have to read that.]],
}, function(keys, params)
  params.reset, params.limit = params.reset or 'earliest', params.limit or queue.LIMIT
  params.mode, params.isolation, params.window, params.max_bytes = 'records', 'committed', queue.WINDOW, -1
  params.backoff_ms, params.backoff_most_ms, params.times = 0, 0, params.time_header and 1
  params.max_records = math.max(1, math.min(params.count, queue.MOST))
  local s, problem = queue.open(keys, params)
  if not s then
    return { err = problem }
  end
  share.find_start(s, params.reset)
  share.prepare(s, params)
  local next_before = s.next
  local taken = share.taken(s, params)
  if taken[1] and taken[1].first < s.held_from then
    return { err = 'ERR offset ' .. taken[1].first .. ' is in the tier alone: a Kafka consumer has to read it' }
  end
  local found, cut, is_batch = queue.read(s, taken, params.time_header)
  if #found == 0 and is_batch then
    return { err = 'ERR offset ' .. cut .. ' is in a batch of records: a Kafka consumer has to read it' }
  elseif cut then
    queue.cut(s, taken, cut, next_before)
  end
  local reply, lock = { 0 }, share.lock(s, params)
  for _, one in ipairs(found) do
    local fields = one.entry[2]
    local timestamp = string.match(fields[2], '^%d+ %d+ (%-?%d+)')
    reply[#reply + 1] = not one.not_before and { one.offset, one.count, tonumber(timestamp), { unpack(fields, 5) } }
      or nil
  end
  queue.acquire(s, found, lock)
  s.moves = true
  share.save(s)
  reply[1] = share.wait_ms(s, params)
  return reply
end)

-- The offsets of a call as acknowledgements of one type, or nil if one is no offset.
function queue.acknowledgements(offsets, kind)
  local sorted, found = {}, {}
  for at, text in ipairs(offsets) do
    sorted[at] = value.number(text, 'offset')
  end
  table.sort(sorted)
  for _, offset in ipairs(sorted) do
    local before = found[#found]
    if before and offset <= before.last + 1 then
      before.last = offset
    else
      found[#found + 1] = { first = offset, last = offset, type = kind }
    end
  end
  return found[1].first >= 0 and found or nil
end

queue.KINDS = { done = share.ACCEPT, retry = share.RELEASE, reject = share.REJECT, extend = share.RENEW }

korvet.define({
  name = 'queue_settle', flags = { 'allow-oom' },
  description = 'settle records that a worker took from a queue, from Redis',
  keys = '@share',
  args = [[
    group id of the share group   worker as in queue_take
    kind:done|retry|reject|extend `retry` gives them back, `extend` begins their locks anew, the others finish them
    ms:ms until they may be taken again (retry), or of the new lock (extend); else 0
    limit:int of deliveries, after which `retry` finishes a record
    offsets+<=1000
  ]],
  returns = 'the number of records; an error, and nothing is written, if the worker does not hold one of them',
  bound = '1000 records',
  source = 'SharePartition.acknowledge',
}, function(keys, params)
  local acknowledgements = queue.acknowledgements(params.offsets, queue.KINDS[params.kind])
  local s, problem = queue.open(keys, params)
  if not s then
    return { err = problem }
  end
  params.lock_ms, params.backoff_ms, params.backoff_most_ms = params.ms, params.ms, params.ms
  local outcome, parts = code.INVALID_REQUEST, nil
  if acknowledgements then
    outcome, parts = share.parts(s, acknowledgements, params)
  end
  if outcome ~= code.NONE then
    return { err = 'ERR ' .. params.worker .. ' does not hold all of these records, or no longer: none was settled' }
  end
  local settled = 0
  for _, part in ipairs(parts) do
    settled = settled + part.last - part.first + 1
  end
  share.settle_all(s, parts, params)
  share.save(s) -- first write
  return settled
end)
