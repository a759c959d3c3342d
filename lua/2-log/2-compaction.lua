-- Compaction of a log: a stream without replaced records is built beside the log's stream, and takes its place.
--
-- The front-end can read records, so it decides which batches go or change. These functions keep that safe: a lease for
-- one front-end at a time, the copying, and the swap, which demands that the log's history has not changed.
-- Offsets stay. An entry keeps its id and how many offsets its batch spans, whatever is left of the records. A batch
-- that was written anew lies in its entry, or is placed by a name of its own. The entry's field `p` has that name.
--
-- An entry's running totals are the log's totals without the later entries. So they count the bytes and entries
-- that exist, and never fall.
--
-- The key `<log>:spare` holds the stream under construction. After the swap it holds the former one, until the batches
-- placed for that alone are removed. The field `compaction` of the meta hash is the lease, `token end_ms phase`:
-- `clear` while a former spare is being removed, `build`, then `done`. Compaction has looked at each key
-- below the offset in the field `cleaned`; a partition of which Redis lacks the begin has a word there (tier.FENCE).
-- Source: Cleaner, LogCleanerManager
local compaction = {}

-- True if a partition has not changed since the look at it, and its compaction is the caller's. The parameters hold the
-- topic_id, run_id, epoch, start, token and entries in the spare. nil if the topic is another. Segments hold the
-- batches as they were, so a partition with segments is not compacted.
function compaction.is_as_seen(keys, params)
  local meta = redis.call(
    'HMGET', keys[2], 'topic_id', 'run_id', 'epoch', 'start', 'compaction', 'replid', 'tier_end'
  )
  if meta[1] ~= params.topic_id then
    return nil
  end
  local token, phase = string.match(meta[5] or '', '^(%S+) %d+ (%a+)$')
  return meta[2] == params.run_id and meta[3] == params.epoch and meta[4] == params.start and token == params.token
    and phase == 'build' and meta[6] == server.replid() and not meta[7] and redis.call('XLEN', keys[4]) == params.copied
end

-- An entry's index with its batch's new size, max_timestamp and crc, and with totals raised by the bytes and batches
-- that are removed after it.
function compaction.index(entry, changed, bytes, batches)
  local records, size, max_timestamp, running_max, running_bytes, running_batches, epoch, crc =
    string.match(entry[2][2], '^(%d+) (%d+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+)$')
  if not records then
    error('entry ' .. entry[1] .. ' is not one of korvet\'s', 0)
  end
  if changed then
    size, max_timestamp, crc = string.match(changed, '^(%d+) (%-?%d+) (%d+)$')
  end
  return string.format(
    '%s %s %s %s %d %d %s %s',
    records, size, max_timestamp, running_max, running_bytes + bytes, running_batches + batches, epoch, crc
  )
end

korvet.define({
  name = 'log_compaction_begin', flags = { 'allow-oom' },
  description = "take or keep the lease of a partition's compaction, and remove the keys that the last one left",
  keys = '@log   spare stream beside the log',
  args = [[
    topic_id   token of the one compaction   lease_ms:int
    is_kept? 1 to keep a lease only: plans from before another front-end had it are worth nothing
  ]],
  returns = [[{code, status}; status: busy (another front-end has it, or had it meanwhile) | more (call again) | ready
    (the spare is empty, or as the token's owner left it)]],
  bound = '100 entries a call; or about 1 MiB',
  codes = 'GONE',
}, function(keys, params)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'compaction')
  if meta[1] ~= params.topic_id or redis.call('EXISTS', keys[1]) == 0 then
    return { code.GONE, '' }
  end
  local now_ms = value.now_ms()
  local token, end_ms, phase = string.match(meta[2] or '', '^(%S+) (%d+) (%a+)$')
  if token ~= params.token then
    if params.is_kept or token and value.is_running(tonumber(end_ms), now_ms, params.lease_ms) then
      return { code.NONE, 'busy' }
    end
    phase = 'clear'
  end
  -- The first write is in discard_spare.
  if phase == 'clear' and not log.discard_spare(keys[1], keys[4]) then
    phase = 'build'
  end
  local lease = params.token .. ' ' .. value.integer(now_ms + params.lease_ms) .. ' ' .. phase
  redis.call('HSET', keys[2], 'compaction', lease)
  return { code.NONE, phase == 'clear' and 'more' or 'ready' }
end)

-- The changes by the offset just past each entry: {''} for an entry that goes, else the index's new part and the batch.
function compaction.changes(dropped, flat)
  local changes = {}
  for next_offset in string.gmatch(dropped, '%d+') do
    changes[next_offset] = { '' }
  end
  for at = 1, #flat, 3 do
    if not string.find(flat[at + 1], '^%d+ %-?%d+ %d+$') then
      error('a change is not `size max_timestamp crc`: ' .. flat[at + 1], 0)
    end
    changes[flat[at]] = { flat[at + 1], flat[at + 2] }
  end
  return changes
end

-- An entry's fields in the spare; bytes and batches are what is removed after it. nil if a placed batch is missing.
function compaction.fields(log_key, entry, change, token, bytes, batches)
  if not change then
    local fields = entry[2]
    fields[2] = compaction.index(entry, nil, bytes, batches)
    return fields
  end
  local index = compaction.index(entry, change[1], bytes, batches)
  if change[2] ~= '' then
    return { 'i', index, 'b', change[2] }
  end
  local place = log.next_offset(entry) .. '.' .. token
  if redis.call('STRLEN', log.placed_key(log_key, place)) == tonumber(string.match(change[1], '^%d+')) then
    return { 'i', index, 'p', place }
  end
end

-- Write entries into the spare with these fields; an entry without fields is left out. Returns how many were written.
function compaction.write(keys, entries, written)
  local count = 0
  for at, entry in ipairs(entries) do
    local fields = written[at]
    if fields then
      if fields[3] == 'p' then
        redis.call('PERSIST', log.placed_key(keys[1], fields[4]))
      end
      redis.call('XADD', keys[4], entry[1], unpack(fields))
      count = count + 1
    end
  end
  return count
end

korvet.define({
  name = 'log_compaction_copy',
  description = 'copy entries into the stream beside the log, without dropped entries and with changed ones',
  keys = '@log   spare stream beside the log',
  args = [[
    topic_id   run_id   epoch   start   token   copied:int entries that are in the spare
    cursor the offset just past the last entry before these   up_to:int the same of the last of these
    removed_bytes:int behind the cursor, in all   removed_batches:int behind the cursor, in all
    dropped offsets just past the batches that go, separated by blanks
    changes*3<=300 three for each batch that changes: the offset just past it, `size max_timestamp crc`, and the batch,
      or '' if it lies at `<log>:<offset>.<token>`
  ]],
  returns = '{code, status, copied}; status: ready | lost (the partition or the lease changed: give up)',
  bound = '100 entries a call',
  codes = 'GONE',
}, function(keys, params)
  local log_key, bytes, batches = keys[1], params.removed_bytes, params.removed_batches
  local is_as_seen = compaction.is_as_seen(keys, params)
  if is_as_seen == nil then
    return { code.GONE, '', 0 }
  end
  local changes = compaction.changes(params.dropped, params.changes)
  local last = value.integer(params.up_to) .. '-0'
  local entries = redis.call('XRANGE', log_key, '(' .. params.cursor .. '-0', last, 'COUNT', log.STEP)
  if not is_as_seen or #entries == 0 or tonumber(log.next_offset(entries[#entries])) ~= params.up_to then
    return { code.NONE, 'lost', 0 }
  end
  local written = {}
  for at, entry in ipairs(entries) do
    local change = changes[log.next_offset(entry)]
    if change then
      bytes = bytes - log.running(entry) + (string.match(change[1], '^%d+') or 0)
    end
    if change and change[1] == '' then
      batches = batches - 1
      written[at] = false
    else
      written[at] = compaction.fields(log_key, entry, change, params.token, bytes, batches)
      if not written[at] then
        return { code.NONE, 'lost', 0 }
      end
    end
  end
  return { code.NONE, 'ready', params.copied + compaction.write(keys, entries, written) } -- first write
end)

-- Put the spare, which holds all that stays, in the log's place.
function compaction.take_place(keys, params, totals, former_key)
  local last = redis.call('XREVRANGE', keys[4], '+', '-', 'COUNT', 1)[1]
  redis.call('XSETID', keys[4], last[1], 'ENTRIESADDED', (string.match(totals, '%d+$')))
  redis.call('RENAME', keys[1], former_key)
  redis.call('RENAME', keys[4], keys[1])
  redis.call('RENAME', former_key, keys[4])
  redis.call('UNLINK', log.copies_key(keys[4]))
  local lease = string.match(redis.call('HGET', keys[2], 'compaction'), '^%S+ %d+')
  local cleaned = value.integer(params.cleaned)
  redis.call('HSET', keys[2], 'compaction', lease .. ' done', 'cleaned', cleaned, 'totals', totals)
  for _, marker in ipairs(params.markers) do
    redis.call('ZREMRANGEBYSCORE', keys[5], marker, marker)
  end
end

korvet.define({
  name = 'log_compaction_swap', flags = { 'allow-oom' },
  description = 'copy later entries and the Redis groups, and put the stream beside the log in its place',
  keys = '@log   spare stream beside the log   aborted? zset `first last producer_id stable` by the last offset',
  args = [[
    topic_id   run_id   epoch   start   token   copied:int entries that are in the spare
    cursor the offset just past the last entry that was looked at
    grown_bytes:int of the whole log if it is larger than before, else 0
    cleaned:int the offset below which each key was looked at
    markers*<=5000 offsets of the removed markers of aborted transactions
  ]],
  returns = [[{code, status, copied, cursor}; status: more (call again with copied and cursor) | done | lost (the
    partition or the lease changed: give up) | crowded (more Redis groups, or consumers in a group, than a call
    takes)]],
  bound = '100 entries a call, or about 1 MiB, and 500 Redis groups, consumers and pending entries in all',
  codes = 'GONE',
  source = 'UnifiedLog.replaceSegments',
}, function(keys, params)
  local former_key = log.spare_key(keys[1]) .. ':former'
  local is_as_seen = compaction.is_as_seen(keys, params)
  if is_as_seen == nil then
    return { code.GONE, '', 0, '' }
  end
  -- During a slot migration a RENAME to a missing key would fail. So this fails first, before anything is written.
  redis.call('EXISTS', keys[1], keys[4], former_key, log.copies_key(keys[4]))
  local entries, is_more = log.page(keys[1], '(' .. params.cursor .. '-0', '+')
  if not is_as_seen or #entries == 0 and redis.call('XLEN', keys[4]) == 0 then
    return { code.NONE, 'lost', 0, '' }
  end
  local totals = redis.call('HGET', keys[2], 'totals')
  local written = {}
  for at, entry in ipairs(entries) do
    written[at] = compaction.fields(keys[1], entry, nil, params.token, params.grown_bytes, 0)
  end
  local copied = params.copied + compaction.write(keys, entries, written) -- first write
  local cursor = #entries > 0 and log.next_offset(entries[#entries]) or params.cursor
  local status = is_more and 'more' or compaction.keep_groups(keys, totals)
  if status ~= 'done' then
    return { code.NONE, status, copied, cursor }
  end
  local running_max, bytes, batches = string.match(totals, '^(%S+) (%d+) (%d+)$')
  totals = string.format('%s %d %s', running_max, bytes + params.grown_bytes, batches)
  compaction.take_place(keys, params, totals, former_key)
  -- As after a trim: front-ends ask again before they trust what they remember.
  redis.call('SPUBLISH', keys[1], '-1 -1')
  return { code.NONE, 'done', copied, '' }
end)

korvet.define({
  name = 'log_compaction_end', flags = { 'allow-oom' },
  description = 'remove the keys that a compaction left beside the log, and then give its lease back',
  keys = '@log   spare stream beside the log',
  args = [[
    topic_id   token   run_id? given with the next two if nothing had to change   epoch?
    cleaned:int? the offset below which each key was looked at; remembered if the two are still right
  ]],
  returns = '{code, more}; more is 1 while something is left: call again; may be repeated',
  bound = '100 entries a call; or about 1 MiB',
  codes = 'GONE',
}, function(keys, params)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'compaction', 'run_id', 'epoch', 'replid', 'tier_end')
  local is_as_seen = not meta[6] and meta[3] == params.run_id and meta[4] == params.epoch and meta[5] == server.replid()
  if meta[1] ~= params.topic_id or redis.call('EXISTS', keys[1]) == 0 then
    return { code.GONE, 0 }
  elseif string.match(meta[2] or '', '^%S+') ~= params.token then
    return { code.NONE, 0 }
  end
  if log.discard_spare(keys[1], keys[4]) then -- first write
    return { code.NONE, 1 }
  end
  if params.cleaned and is_as_seen then
    redis.call('HSET', keys[2], 'cleaned', value.integer(params.cleaned))
  end
  redis.call('HDEL', keys[2], 'compaction')
  return { code.NONE, 0 }
end)
