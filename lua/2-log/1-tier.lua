-- The tier of a partition: segments in object storage, which hold its oldest batches byte for byte.
--
-- The zset `:tier` lists them, each by the offset after it; each begins where the one before it ends. A member is a
-- text
--   kind first size footer_bytes max_timestamp running_max_timestamp running_bytes crc name
-- kind is `segment`, or `shelf` for an object that lists segments in its turn; first is the first offset; size counts
-- the batches' bytes, and footer_bytes the footer's, or the whole shelf's; max_timestamp is the batches' own; the
-- running values are those of the last entry's index; crc is the footer's CRC-32C, or the shelf's; name the object's.
--
-- One more member, the topic id, has the score -1 - log start, and another one, `token` and a random text that names
-- this list, has -inf. So the list alone says whose it is, and which records were deleted. The list exists from the
-- first segment on, and so do two fields of the meta hash: tier, the random text, and tier_end, the offset after the
-- last segment. A local trim writes the field local_start. Redis holds the offsets from it or from the log start on,
-- whichever is larger. The segments hold those from the log start to tier_end, so both hold what lies between
-- local_start and tier_end.
--
-- A segment below the log start is read no more. It stays in the list until its object is gone, because nothing else
-- remembers the name.
--
-- The list and the log are in one stream of replication. So a server that came back without its last writes has no
-- segment of records that it has lost. Segments end at or below the last stable offset.
-- Source: KIP-405, UnifiedLog.localLogStartOffset, highestOffsetInRemoteStorage
local tier = {}

-- With so many segments the oldest ones have to be shelved before another one comes in.
tier.MOST_SEGMENTS = 1024
-- Segments that one call lists, shelves or forgets.
tier.AT_ONCE = 512
tier.PAGE = 64
-- Leader epochs that began below the local start, at most: a trim of the log forgets those of removed records, and one
-- that keeps the records must not keep all epochs of years.
tier.MOST_EPOCHS = 100
-- The field cleaned after a local trim. Front-ends of 0.7 and older know nothing of the local start, and would skip all
-- records below it. They take this for damage instead, and answer with an error.
tier.FENCE = 'tier'

-- The first offset that Redis holds, by the meta hash's start and local_start.
function tier.held_from(start, local_start)
  return math.max(tonumber(start), tonumber(local_start or 0))
end

-- The numbers of a segment's text: first, size, max_timestamp; and its running values, a text.
function tier.parsed(text)
  local first, size, max_timestamp, running =
    string.match(text, '^%a+ (%d+) (%d+) %d+ (%-?%d+) (%-?%d+ %d+) %d+ [%w._-]+$')
  if not first then
    error('a segment cannot be read: ' .. text, 0)
  end
  return tonumber(first), tonumber(size), tonumber(max_timestamp), running
end

-- A segment's text.
function tier.text(kind, first, size, footer_bytes, max_timestamp, running, crc, name)
  if first < 0 or size < 0 or footer_bytes < 0 or crc < 0 or not string.find(name, '^[%w._-]+$') or #name > 128 then
    error('not a segment: first, size, footer_bytes and crc are not below 0, and a name is of letters and digits', 0)
  end
  return string.format(
    '%s %d %d %d %s %s %d %s', kind, first, size, footer_bytes, value.integer(max_timestamp), running, crc, name
  )
end

-- True if the list ends where the meta hash says; without segments it is not there. nil if somebody deleted it.
function tier.is_whole(tier_key, topic_id, start, tier_end)
  local last = redis.call('ZRANGE', tier_key, -1, -1, 'WITHSCORES')
  if not tier_end then
    return not last[1] or nil
  end
  local is_empty = last[1] == topic_id and tonumber(tier_end) <= tonumber(start)
  return is_empty or last[2] and tonumber(last[2]) == tonumber(tier_end) or nil
end

-- Begin a list, or write who it is anew.
function tier.name_list(tier_key, topic_id, start, token)
  redis.call('ZADD', tier_key, '-inf', 'token ' .. token, value.integer(-1 - start), topic_id)
end

-- Note the log start in the list.
function tier.note_start(tier_key, topic_id, start)
  redis.call('ZADD', tier_key, 'XX', value.integer(-1 - start), topic_id)
end

-- By the list and the first offset that the log holds: offsets in the meta hash, the list's name, and the running
-- values at the end of the last segment, nil without any.
function tier.rebuilt(tier_key, start, held_from)
  local first = redis.call('ZRANGEBYSCORE', tier_key, 0, '+inf', 'LIMIT', 0, 1)[1]
  local last, tier_end = unpack(redis.call('ZRANGE', tier_key, -1, -1, 'WITHSCORES'))
  tier_end = tonumber(tier_end)
  start = math.max(start, first and tier.parsed(first) or held_from)
  local token = string.match(redis.call('ZRANGE', tier_key, 0, 0)[1] or '', '^token (.*)')
  -- A log may begin within a batch, and a segment may not.
  tier_end = first and tier_end or math.min(start, held_from)
  return { start = start, local_start = held_from, tier_end = tier_end }, token, first and select(4, tier.parsed(last))
end

-- The offset up to which segments follow each other from an offset on, at most a given one.
function tier.reached(tier_key, from, offset)
  while from < offset do
    local page = redis.call(
      'ZRANGEBYSCORE', tier_key, '(' .. value.integer(from), '+inf', 'WITHSCORES', 'LIMIT', 0, tier.PAGE
    )
    if #page == 0 then
      return from
    end
    for at = 1, #page, 2 do
      if tier.parsed(page[at]) > from then
        return from
      end
      from = tonumber(page[at + 1])
    end
  end
  return offset
end

-- The epochs text after a local trim: the last ones that began below it, as many as may stay, and all later ones.
function tier.epochs_kept(epochs, local_start)
  local kept, below = {}, 0
  for epoch, start in string.gmatch(epochs, '(%d+):(%d+)') do
    kept[#kept + 1] = epoch .. ':' .. start
    below = tonumber(start) < local_start and #kept or below
  end
  return table.concat(kept, ',', math.max(1, below - tier.MOST_EPOCHS + 1))
end

-- True if an entry has this index.
function tier.is_entry(entry, index)
  return entry and entry[2][1] == 'i' and entry[2][2] == index
end

-- The offset at which the next segment begins: behind the last one, else at the first entry that the log holds.
function tier.next_first(log_key, held_from, tier_end)
  if tier_end and tonumber(tier_end) >= held_from then
    return tonumber(tier_end)
  end
  local entry = log.entry_above(log_key, held_from)
  return entry and math.min(held_from, tonumber(log.next_offset(entry)) - log.times(entry)) or held_from
end

-- The status of an uploaded segment, and where the next one begins.
function tier.judge(keys, params, meta)
  local first = tier.next_first(keys[1], tier.held_from(meta[2], meta[5]), meta[6])
  local stable = tonumber(meta[4] or meta[3])
  if params.first ~= first then
    return 'conflict', first
  elseif params.next > stable then
    return 'open', first
  elseif params.next <= first then
    error('a segment from ' .. params.first .. ' to ' .. params.next, 0)
  end
  local last_id = value.integer(params.next) .. '-0'
  local last = redis.call('XRANGE', keys[1], last_id, last_id)[1]
  if not tier.is_entry(log.entry_above(keys[1], first), params.first_index)
    or not tier.is_entry(last, params.last_index) then
    return 'changed', first
  elseif redis.call('ZCOUNT', keys[3], 0, '+inf') >= tier.MOST_SEGMENTS then
    return 'full', first
  end
  return 'added', params.next
end

korvet.define({
  name = 'tier_add', flags = { 'allow-oom' },
  description = 'enter an uploaded segment, if the log still holds what is in it',
  keys = '@tier',
  args = [[
    topic_id   token names the list if this is its first segment   name of the object   first:int
    next:int the offset after it   size:int bytes of its batches   footer_bytes:int   crc:int of the footer
    max_timestamp:int ms, the greatest of its batches; one without timestamps counts from its append
    first_index of the first entry in it, as the log had it   last_index of the last one
  ]],
  returns = [[{code, status, next_first, segments}: where the next segment begins, and how many there are. status: added
    (or it was before) | conflict (it does not begin at next_first: another one was added, or records were deleted) |
    open (it ends above the last stable offset) | changed (the log has other entries there, or none) | full (shelve
    first)]],
  bound = '1024 segments',
  codes = 'GONE, LOST (the list is not there, or does not end at tier_end)',
  source = 'RemoteLogManager.copyLogSegment',
  notes = [[May be repeated: a segment that is there is not added twice. Once it is shelved, a repeat is a conflict. So
    the object of a refused segment must stay until the list and all shelves were searched for its name. A change of the
    leader epoch refuses nothing, because an entry keeps its epoch in its index. Another history at these offsets does.
    ]],
}, function(keys, params)
  local meta = redis.call(
    'HMGET', keys[2], 'topic_id', 'start', 'end', 'first_open', 'local_start', 'tier_end', 'tier'
  )
  if meta[1] ~= params.topic_id then
    return { code.GONE, '', -1, 0 }
  elseif not tier.is_whole(keys[3], meta[1], meta[2], meta[6]) then
    return { code.LOST, '', -1, 0 }
  end
  local running = string.match(params.last_index, '^%d+ %d+ %-?%d+ (%-?%d+ %d+) %d+ %d+ %d+$')
  if not running then
    error('last_index is not an entry\'s: ' .. params.last_index, 0)
  end
  local text = tier.text(
    'segment', params.first, params.size, params.footer_bytes, params.max_timestamp, running, params.crc, params.name
  )
  local count = redis.call('ZCOUNT', keys[3], 0, '+inf')
  if redis.call('ZSCORE', keys[3], text) then
    return { code.NONE, 'added', tier.next_first(keys[1], tier.held_from(meta[2], meta[5]), meta[6]), count }
  end
  local status, first = tier.judge(keys, params, meta)
  if status ~= 'added' then
    return { code.NONE, status, first, count }
  end
  if not meta[6] then
    tier.name_list(keys[3], meta[1], meta[2], meta[7] or params.token) -- first write
  end
  redis.call('ZADD', keys[3], value.integer(params.next), text)
  redis.call('HSET', keys[2], 'tier_end', value.integer(params.next), 'tier', meta[7] or params.token)
  return { code.NONE, status, first, count + 1 }
end)

korvet.define({
  name = 'tier_trim', flags = { 'allow-oom' },
  description = 'remove a bounded number of batches from Redis that segments hold; the log start stays',
  keys = '@tier',
  args = [[
    topic_id   offset:int below which Redis forgets them
    epoch the leader epoch in which the offset was chosen: in another epoch it is of another history
  ]],
  returns = '{code, local_start, more}; more is 1 while something may be left to remove: call again; may be repeated',
  bound = '100 entries a call; about 1 MiB, 1000 aborted transactions, and 1024 segments that are looked at',
  codes = [[GONE, FENCED_LEADER_EPOCH, OFFSET_OUT_OF_RANGE (above the segments' end), LOST (no segments that follow each
    other hold all of it)]],
  source = 'UnifiedLog.deleteOldSegments, incrementLocalLogStartOffset',
  notes = [[Nobody hears of it: entries and batches that a front-end remembers stay what they were. Footers of segments
    name the aborted transactions that Redis forgets, and the leader epochs if they are more than 100. Front-ends of 0.7
    and older take the partition for damaged from then on.]],
}, function(keys, params)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'start', 'local_start', 'tier_end', 'epoch', 'epochs')
  if meta[1] ~= params.topic_id then
    return { code.GONE, -1, 0 }
  end
  local from, offset = tier.held_from(meta[2], meta[3]), params.offset
  if params.epoch ~= meta[5] then
    return { code.FENCED_LEADER_EPOCH, from, 0 }
  elseif offset < 0 or offset > tonumber(meta[4] or -1) then
    return { code.OFFSET_OUT_OF_RANGE, from, 0 }
  end
  local held_from = math.max(from, offset)
  if tier.reached(keys[3], from, held_from) < held_from then
    return { code.LOST, from, 0 }
  end
  redis.call('ZCARD', keys[4])
  local below, is_more = log.page(keys[1], '-', value.integer(held_from) .. '-0')
  if held_from > from then
    redis.call(
      'HSET', keys[2], 'local_start', value.integer(held_from), 'cleaned', tier.FENCE,
      'epochs', tier.epochs_kept(meta[6], held_from)
    ) -- first write
  end
  is_more = log.forget_aborted(keys[4], held_from) or is_more
  log.drop(keys[1], below)
  return { code.NONE, held_from, is_more and 1 or 0 }
end)

korvet.define({
  name = 'tier_list', flags = { 'no-writes', 'allow-oom' },
  description = "list a partition's segments from an offset on",
  keys = [[
    meta hash identity, offsets, epochs, totals
    tier zset `kind first size footer_bytes max_timestamp running_max_timestamp running_bytes crc name` of a segment by
      the offset after it
  ]],
  args = [[
    topic_id   offset:int 0 for all; those below the log start are no longer read
    most:int at least 1; a call lists 512 of them
  ]],
  returns = [=[{code, token, leader_epoch, log_start, local_start, tier_end, [next, text, ...], more}; tier_end is -1
    without segments; more is 1 if others follow: go on from the last next]=],
  bound = '512 segments a call',
  codes = 'GONE, LOST (the list is not there, or does not end at tier_end)',
  notes = [[A caller may keep the list for the token and the leader epoch. In one epoch it grows at its end, loses
    segments below the log start, and gets shelves for segments. Nothing else changes it.]],
}, function(keys, params)
  local meta = redis.call('HMGET', keys[1], 'topic_id', 'tier', 'epoch', 'start', 'local_start', 'tier_end')
  if meta[1] ~= params.topic_id then
    return { code.GONE, '', -1, -1, -1, -1, {}, 0 }
  end
  local held_from, tier_end = tier.held_from(meta[4], meta[5]), tonumber(meta[6] or -1)
  local reply = { code.NONE, meta[2] or '', tonumber(meta[3]), tonumber(meta[4]), held_from, tier_end, {}, 0 }
  if not tier.is_whole(keys[2], meta[1], meta[4], meta[6]) then
    reply[1] = code.LOST
    return reply
  end
  local most = math.max(math.min(params.most, tier.AT_ONCE), 1)
  local above = '(' .. value.integer(math.max(params.offset, 0))
  local flat = redis.call('ZRANGEBYSCORE', keys[2], above, '+inf', 'WITHSCORES', 'LIMIT', 0, most + 1)
  for at = 1, math.min(#flat, 2 * most), 2 do
    table.insert(reply[7], tonumber(flat[at + 1]))
    table.insert(reply[7], flat[at])
  end
  reply[8] = #flat > 2 * most and 1 or 0
  return reply
end)

-- The offset after the segments of a list, as texts and offsets in turn, that limits remove, and that Redis no longer
-- holds all of. Without any it is the first one.
function tier.kept_from(listed, from, held_from, oldest, most_running)
  for at = 1, #listed, 2 do
    local _, _, max_timestamp, running = tier.parsed(listed[at])
    local is_old = max_timestamp < oldest
    if from >= held_from or not is_old and tonumber(string.match(running, '%d+$')) > most_running then
      break
    end
    from = tonumber(listed[at + 1])
  end
  return from
end

korvet.define({
  name = 'tier_kept', flags = { 'no-writes', 'allow-oom' },
  description = 'find the first segment that limits keep, among those with records that Redis no longer holds',
  keys = [[
    meta hash identity, offsets, epochs, totals
    tier zset `kind first size footer_bytes max_timestamp running_max_timestamp running_bytes crc name` of a segment by
      the offset after it
  ]],
  args = 'topic_id   oldest:int ms, or -1   keep_bytes:int of the whole log, or -1',
  returns = [[{code, leader_epoch, kept_from}: the offset below which whole segments may go. It is the log start if none
    may, and at or above the local start if all may]],
  bound = '1024 segments',
  codes = 'GONE, LOST (the list is not there, or does not end at tier_end)',
  source = 'RemoteLogManager.RLMExpirationTask.cleanupExpiredRemoteLogSegments',
}, function(keys, params)
  local meta = redis.call('HMGET', keys[1], 'topic_id', 'start', 'local_start', 'tier_end', 'epoch', 'totals')
  if meta[1] ~= params.topic_id then
    return { code.GONE, -1, -1 }
  end
  local start, epoch = tonumber(meta[2]), tonumber(meta[5])
  if not tier.is_whole(keys[2], meta[1], meta[2], meta[4]) then
    return { code.LOST, epoch, start }
  end
  local listed = redis.call(
    'ZRANGEBYSCORE', keys[2], '(' .. value.integer(start), '+inf', 'WITHSCORES', 'LIMIT', 0, tier.MOST_SEGMENTS
  )
  local total, keep = tonumber(string.match(meta[6], '^%S+ (%d+)')), params.keep_bytes
  local most_running = keep < 0 and -1 or total - keep
  local held_from = tier.held_from(start, meta[3])
  return { code.NONE, epoch, tier.kept_from(listed, start, held_from, params.oldest, most_running) }
end)

-- The offset after some segments that follow each other in the list, or nil if they do not.
function tier.run_end(tier_key, texts)
  local from, past = redis.call('ZSCORE', tier_key, texts[1]), nil
  local there = from and redis.call('ZRANGEBYSCORE', tier_key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, #texts) or {}
  for at, text in ipairs(texts) do
    local is_next = not past or past == tier.parsed(text)
    if there[2 * at - 1] ~= text or string.sub(text, 1, 8) ~= 'segment ' or not is_next then
      return nil
    end
    past = tonumber(there[2 * at])
  end
  return past
end

-- The text of the object that takes the place of these segments.
function tier.shelf(params)
  local first, bytes, newest, running = nil, 0, -1, nil
  for _, text in ipairs(params.segments) do
    local its_first, size, max_timestamp, its_running = tier.parsed(text)
    first, bytes, newest, running = first or its_first, bytes + size, math.max(newest, max_timestamp), its_running
  end
  return tier.text(params.kind, first, bytes, params.bytes, newest, running, params.crc, params.name)
end

korvet.define({
  name = 'tier_shelve', flags = { 'allow-oom' },
  description = 'put one object in the place of segments: a shelf that lists them, or a segment of all their batches',
  keys = '@tier',
  args = [[
    topic_id   name of the uploaded object   kind:shelf|segment   bytes:int of the shelf, or of the segment's footer
    crc:int of these
    segments+<=512 the texts of those that it replaces, all that follow each other from the first of them on
  ]],
  returns = [[{code, status, segments}: how many the list has then. status: shelved (or it was before) | conflict (these
    do not follow each other in the list, or one is a shelf)]],
  bound = '512 segments a call',
  codes = 'GONE, LOST (the list is not there, or does not end at tier_end)',
  notes = [[May be repeated. Objects that a shelf lists stay. Those of merged segments may go once the call is on the
    disks, and readers had time to leave.]],
}, function(keys, params)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'start', 'tier_end')
  if meta[1] ~= params.topic_id then
    return { code.GONE, '', 0 }
  elseif not meta[3] or not tier.is_whole(keys[3], meta[1], meta[2], meta[3]) then
    return { code.LOST, '', 0 }
  end
  local shelf = tier.shelf(params)
  local count = redis.call('ZCOUNT', keys[3], 0, '+inf')
  if redis.call('ZSCORE', keys[3], shelf) then
    return { code.NONE, 'shelved', count }
  end
  local next_offset = tier.run_end(keys[3], params.segments)
  if not next_offset then
    return { code.NONE, 'conflict', count }
  end
  redis.call('ZADD', keys[3], value.integer(next_offset), shelf) -- first write
  redis.call('ZREM', keys[3], unpack(params.segments))
  return { code.NONE, 'shelved', count - #params.segments + 1 }
end)

korvet.define({
  name = 'tier_forget', flags = { 'allow-oom' },
  description = 'take segments below the log start out of the list, after their objects were deleted',
  keys = '@tier',
  args = 'topic_id   segments+<=512 their texts',
  returns = '{code, removed}: how many were in the list; may be repeated',
  bound = '512 segments a call',
  codes = 'GONE',
  notes = [[A segment that ends above the log start stays. Before a caller deletes an object, the log start has to be on
    the disks, and readers need time to leave: a server that came back without its last writes lists the object again.
    ]],
}, function(keys, params)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'start')
  if meta[1] ~= params.topic_id then
    return { code.GONE, 0 }
  end
  local below = {}
  for _, text in ipairs(params.segments) do
    local next_offset = tonumber(redis.call('ZSCORE', keys[3], text) or nil)
    if next_offset and next_offset >= 0 and next_offset <= tonumber(meta[2]) then
      below[#below + 1] = text
    end
  end
  if #below > 0 then
    redis.call('ZREM', keys[3], unpack(below)) -- first write
  end
  return { code.NONE, #below }
end)
