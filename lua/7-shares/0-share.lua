-- Share partitions: how far a share group (KIP-932) is with the records of one partition. Source: SharePartition,
-- InFlightState, InFlightBatch.
--
-- They lie in the partition's slot, so one history holds the log and what was done with it. No acknowledgement is of
-- records that are lost, and no lock is of offsets that are given out anew. Kafka's state epochs, its snapshots and its
-- share coordinator have no counterpart here.
--
-- The hash `:shares`: group id -> a text
--   id start next tracked available archiving due least swept full letters clock
-- id is the group's own, so a group that is made anew does not go on with this; it is NO_GROUP until a group takes over
-- what Redis workers began. start is the share partition's start offset, -1 until the first acquisition finds it.
-- Offsets from next on were never acquired. tracked is the number of offsets between them that are not finished,
-- available the number of ranges that may be acquired again, and archiving that of dead letters. due is a time before
-- which no lock ends, least the same for the ranges that a sweep has seen, and swept the offset at which it goes on.
-- full is 1 if acquirers wait for the start to move, 2 if for any offset to be finished, and letters is 1 if the group
-- has a topic for dead letters, by the last front-end that acquired. clock is the time of the last change.
--
-- The zset `:share:<group>` holds the tracked offsets as ranges:
--   available first last count size
--   acquired first last count size ends lasts nonce member
--   delayed first last count size ends lasts, and no nonce and member: it is available from ends on
--   archiving first last count size ends lasts owner cause: dead letters, which the owner copies until ends
-- count is the number of deliveries, size the number of offsets that came together at the first one. The lock of an
-- acquired range ends at ends, lasts ms after it began. The nonce names the member's connection. An available range
-- has its first offset less AVAILABLE as score, a dead letter that and AVAILABLE, the others their first offset: so the
-- first one of each kind is found however many are acquired. The member of the empty name is below all.
-- An offset from start to next in no range is finished: accepted, rejected, archived, or it never was a record.
--
-- No process ends locks: whoever acquires does the due work first. An outage prolongs locks as it prolongs sessions.
-- Without the zset the group begins anew at the start, so that records come twice and none is lost.
local share = {
  AVAILABLE = 4503599627370496,
  BELOW_ARCHIVING = '(4503599627370496',
  NEVER = 9007199254740991,
  -- The id while Redis workers alone use a share partition.
  NO_GROUP = '-',
  -- Ranges that one call reads of each state, and acknowledgements that it takes; ranges that it reads at a time.
  MOST = 1000,
  PAGE = 100,
  -- A sweep reads all acquired ranges. So the next one comes so many ms later, or a ms for each range, although a lock
  -- may end before.
  SWEEP_MS = 100,
  -- So often acquirers see that there are dead letters, and have them copied, whatever became of an earlier attempt.
  ARCHIVING_MS = 5000,
}

-- The share partition of a header.
function share.parsed(text, key, group_id)
  local id, start, next_offset, tracked, available, archiving, due, least, swept, full, letters, clock_ms =
    string.match(text, '^(%S+) (%-?%d+) (%-?%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ([012]) ([01]) (%d+)$')
  if not id then
    value.unreadable(key, group_id)
  end
  return {
    id = id, start = tonumber(start), next = tonumber(next_offset), tracked = tonumber(tracked),
    available = tonumber(available), archiving = tonumber(archiving), due = tonumber(due), least = tonumber(least),
    swept = tonumber(swept), full = tonumber(full), letters = tonumber(letters), clock = tonumber(clock_ms),
  }
end

function share.header(s)
  return string.format(
    '%s %d %d %d %d %d %d %d %d %d %d %d', s.id, s.start, s.next, s.tracked, s.available, s.archiving, s.due, s.least,
    s.swept, s.full, s.letters, s.clock
  )
end

-- A share partition without any tracked offset.
function share.fresh(id, start, now)
  return {
    id = id, start = start, next = start, tracked = 0, available = 0, archiving = 0, due = share.NEVER,
    least = share.NEVER, swept = 0, full = 0, letters = 0, clock = now,
  }
end

-- The share partition of a call; or nil, and the code that says why there is none.
function share.open(keys, params)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'start', 'end', 'first_open', 'local_start')
  if meta[1] ~= params.topic_id then
    return nil, code.GONE
  end
  local text = redis.call('HGET', keys[3], params.group)
  if not text then
    return nil, code.GROUP_ID_NOT_FOUND
  end
  local s = share.parsed(text, keys[3], params.group)
  s.keys, s.group, s.text, s.now = keys, params.group, text, value.now_ms()
  s.log_start, s.log_end, s.stable = tonumber(meta[2]), tonumber(meta[3]), tonumber(meta[4] or meta[3])
  s.held_from = tier.held_from(meta[2], meta[5])
  s.removed, s.added = {}, {}
  if value.set_back_ms(s.clock, s.now) > value.CORRECTION_MS then
    s.due, s.swept = 0, 0
  end
  return s
end

-- A range of its text.
function share.range(s, text)
  local state, first, last, count, size, lock = string.match(text, '^(%a+) (%d+) (%d+) (%d+) (%d+)(.*)$')
  local r = { text = text, state = state, first = tonumber(first), last = tonumber(last) }
  r.count, r.size = tonumber(count), tonumber(size)
  if state ~= 'available' then
    local ends, lasts, nonce, member = string.match(lock or '', '^ (%d+) (%d+) (%S*) (.*)$')
    r.ends, r.lasts, r.nonce, r.member = tonumber(ends), tonumber(lasts), nonce, member
  end
  if state ~= 'available' and not r.member then
    error('a member of ' .. s.keys[4] .. ' is no range: ' .. text, 0)
  end
  return r
end

-- Take a range out, in memory.
function share.remove(s, r)
  s.removed[#s.removed + 1] = r.text
  s.tracked = s.tracked - (r.last - r.first + 1)
  s.available = s.available - (r.state == 'available' and 1 or 0)
  s.archiving = s.archiving - (r.state == 'archiving' and 1 or 0)
end

function share.put(s, score, text, first, last)
  s.added[#s.added + 1] = value.integer(score)
  s.added[#s.added + 1] = text
  s.tracked = s.tracked + last - first + 1
end

-- Add an available range, in memory. `of` is the range that it is a part of, or one like that.
function share.add_available(s, first, last, count, of)
  local text = string.format('available %d %d %d %d', first, last, count, of.size)
  share.put(s, first - share.AVAILABLE, text, first, last)
  s.available = s.available + 1
end

-- Add an acquired or delayed range, in memory.
function share.add_timed(s, state, first, last, count, of, lock)
  -- Not by string.format alone, whose %s ends at a NUL.
  local text = string.format('%s %d %d %d %d %d %d ', state, first, last, count, of.size, lock.ends, lock.lasts)
  share.put(s, first, text .. lock.nonce .. ' ' .. lock.member, first, last)
  s.due, s.least = math.min(s.due, lock.ends), math.min(s.least, lock.ends)
end

-- Add a dead letter, in memory. The lease is whose it is, {ends, lasts, owner}.
function share.add_archiving(s, first, last, count, of, cause, lease)
  local text = string.format(
    'archiving %d %d %d %d %d %d %s %s', first, last, count, of.size, lease.ends, lease.lasts, lease.owner, cause
  )
  share.put(s, first + share.AVAILABLE, text, first, last)
  s.archiving = s.archiving + 1
end

-- Add a part of a removed range as it was, in memory.
function share.add_part(s, r, first, last)
  if r.state == 'available' then
    share.add_available(s, first, last, r.count, r)
  elseif r.state == 'archiving' then
    share.add_archiving(s, first, last, r.count, r, r.member, { ends = r.ends, lasts = r.lasts, owner = r.nonce })
  else
    share.add_timed(s, r.state, first, last, r.count, r, r)
  end
end

-- Note that a removed part of a range is finished.
function share.finish(s, first)
  s.moves = s.moves or first <= s.start
  if s.full == 2 then
    s.announced, s.full = true, 0
  end
end

-- Finish a removed part of a range without success: as a dead letter if the group has a topic for these.
function share.fail(s, r, first, last, count, cause, params)
  if params.dead_letters ~= 1 then
    return share.finish(s, first)
  end
  share.add_archiving(s, first, last, count, r, cause, { ends = 0, lasts = 0, owner = '' })
  -- A front-end that waits learns of it, and makes the copy.
  s.announced = true
end

-- Make a removed part of a range available again from a time on.
function share.put_back(s, r, first, last, count, from)
  local delay = math.min(from - s.now, definition.LONGEST_MS)
  if delay <= 0 then
    s.announced = true
    return share.add_available(s, first, last, count, r)
  end
  local wait = { ends = s.now + delay, lasts = delay, nonce = '', member = '' }
  -- Whoever waits calls when it is due, and learns then of what comes later.
  s.announced = s.announced or wait.ends < s.due
  share.add_timed(s, 'delayed', first, last, count, r, wait)
end

-- Make a removed part of a range available again, perhaps later, or finish it if it was delivered as often as it may
-- be. Source: InFlightState.tryUpdateState
function share.give_back(s, r, first, last, count, params)
  if count >= params.limit then
    return share.fail(s, r, first, last, count, 'limit', params)
  end
  local delay = math.min(params.backoff_ms * 2 ^ math.min(count - 1, 30), params.backoff_most_ms)
  share.put_back(s, r, first, last, count, s.now + delay)
end

-- The texts of available ranges, after so many of them.
function share.available(s, after, most)
  return redis.call('ZRANGEBYSCORE', s.keys[4], value.integer(-share.AVAILABLE), '(0', 'LIMIT', after, most)
end

-- The texts of dead letters from an offset on.
function share.archiving(s, offset, most)
  return redis.call('ZRANGEBYSCORE', s.keys[4], value.integer(offset + share.AVAILABLE), '+inf', 'LIMIT', 0, most)
end

-- The first offset that is not finished.
function share.lowest(s)
  local first, key = s.next, s.keys[4]
  local lowest = {
    redis.call('ZRANGEBYSCORE', key, 0, share.BELOW_ARCHIVING, 'LIMIT', 0, 1)[1],
  }
  lowest[#lowest + 1] = s.available > 0 and share.available(s, 0, 1)[1] or nil
  lowest[#lowest + 1] = s.archiving > 0 and share.archiving(s, 0, 1)[1] or nil
  for _, text in ipairs(lowest) do
    first = math.min(first, share.range(s, text).first)
  end
  return first
end

-- Write everything that changed, and move the start over what is finished. An error after this leaves nothing undone.
function share.flush(s)
  group.in_batches('ZREM', s.keys[4], s.removed)
  group.in_batches('ZADD', s.keys[4], s.added)
  s.removed, s.added = {}, {}
  if s.moves then
    local before = s.start
    s.start, s.moves = share.lowest(s), nil
    if s.start > before then
      s.announced = s.announced or s.full > 0
      s.full = 0
    end
  end
  if s.tracked == 0 then
    s.due, s.least, s.swept = share.NEVER, share.NEVER, 0
  end
  if share.header(s) ~= s.text then
    s.clock = s.now
    s.text = share.header(s)
    redis.call('HSET', s.keys[3], s.group, s.text)
  end
end

-- Write everything that changed, and wake the acquirers that wait for it.
function share.save(s)
  share.flush(s)
  if s.announced then
    redis.call('SPUBLISH', s.keys[3], s.group)
  end
end

-- True if a range's lock or delay is over, and else the time at which it ends. An outage prolongs no delay.
function share.is_over(s, r)
  if r.ends > s.now + r.lasts + value.CORRECTION_MS then
    -- It was set before the clock went back.
    return true
  end
  local ends = r.ends
  if r.state == 'acquired' then
    ends = group.prolonged({ fields = {}, outages = s.outages }, ends, r.lasts)
  end
  return ends <= s.now, ends
end
