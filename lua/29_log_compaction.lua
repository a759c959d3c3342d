-- Compaction of a log: a stream without what newer records replaced is built beside the log's, and takes its place.
--
-- Which batches go or change is the front-end's to find out, for it can read records. Here is what keeps that safe: a
-- lease for one front-end at a time, the copying, and the swap, in which the log is the very one that was looked at.
-- Offsets stay. An entry keeps its id and how many offsets its batch spans, whatever is left of the records. A batch
-- that was written anew lies in its entry, or is placed by a name of its own, which stands in the entry's field `p`.
--
-- The running totals stay as if what went had gone from before the first entry: those of an entry are the log's totals
-- less what lies behind it. So they tell what there is, in bytes and entries, and never fall.
--
-- The key `<log>:spare` holds the stream that is built, and after the swap the former one, until what was placed for it
-- alone is removed. The field `compaction` of the meta hash is the lease, `token end_ms phase`: `clear` while a former
-- spare is being removed, `build`, then `done`. The field `cleaned` is the offset below which each key was looked at.
-- Source: Cleaner, LogCleanerManager
local compaction = {}

-- Whether a partition is still the one that was looked at, by whom its compaction belongs to:
-- topic_id, run_id, epoch, start, token, entries in the spare. nil where the topic is another.
function compaction.is_as_seen(keys, args)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'run_id', 'epoch', 'start', 'compaction')
  if meta[1] ~= args[1] then
    return nil
  end
  local token, phase = string.match(meta[5] or '', '^(%S+) %d+ (%a+)$')
  return meta[2] == args[2] and meta[3] == args[3] and meta[4] == args[4] and token == args[5] and phase == 'build'
    and redis.call('XLEN', keys[4]) == value.number(args[6], 'copied')
end

-- An entry's index with what changed of its batch, and with totals that are higher by what is removed behind it.
function compaction.index(entry, changed, bytes, batches)
  local records, size, max_timestamp, running_max, running_bytes, running_batches, epoch, crc =
    string.match(entry[2][2], '^(%d+) (%d+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+)$')
  if changed then
    size, max_timestamp, crc = string.match(changed, '^(%d+) (%-?%d+) (%d+)$')
  end
  return string.format(
    '%s %s %s %s %d %d %s %s',
    records, size, max_timestamp, running_max, running_bytes + bytes, running_batches + batches, epoch, crc
  )
end

-- log_compaction_begin: take or keep the lease of a partition's compaction, and remove what the last one left behind
-- KEYS[1] log       stream  record batches
-- KEYS[2] meta      hash    identity, offsets, epochs, totals
-- KEYS[3] producers hash    producer id -> last batches
-- KEYS[4] spare     stream  beside the log
-- ARGV[1] topic_id   ARGV[2] token   of the one compaction   ARGV[3] lease_ms
-- ARGV[4] is_kept (optional) 1 to keep a lease only: what was found out before somebody else had it is worth nothing
-- Returns {code, status}; status: busy (somebody else's, or not one's own any more) | more (call again) | ready (the
-- spare is empty, or as the token's owner left it)
-- Codes: GONE
function compaction.begin(keys, args)
  local lease_ms = value.number(args[3], 'lease_ms')
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'compaction')
  if meta[1] ~= args[1] or redis.call('EXISTS', keys[1]) == 0 then
    return { code.GONE, '' }
  end
  local now_ms = value.now_ms()
  local token, end_ms, phase = string.match(meta[2] or '', '^(%S+) (%d+) (%a+)$')
  if token ~= args[2] then
    if args[4] or token and tonumber(end_ms) > now_ms then
      return { code.NONE, 'busy' }
    end
    phase = 'clear'
  end
  -- The first write is that of discard_spare.
  if phase == 'clear' and not log.discard_spare(keys[1], keys[4]) then
    phase = 'build'
  end
  redis.call('HSET', keys[2], 'compaction', args[2] .. ' ' .. value.integer(now_ms + lease_ms) .. ' ' .. phase)
  return { code.NONE, phase == 'clear' and 'more' or 'ready' }
end
redis.register_function{
  function_name = 'korvet_log_compaction_begin',
  callback = compaction.begin,
  flags = { 'allow-oom' },
  description = 'take or keep the lease of a partition\'s compaction, and remove what the last one left behind',
}

-- What is to be done to entries, by the offset just past them: '' where one goes, else its index's new part and batch.
function compaction.changes(args)
  local changes = {}
  for next_offset in string.gmatch(args[11], '%d+') do
    changes[next_offset] = { '' }
  end
  for at = 12, #args, 3 do
    if not args[at + 2] or not string.find(args[at + 1], '^%d+ %-?%d+ %d+$') then
      error('a change is not of three arguments', 0)
    end
    changes[args[at]] = { args[at + 1], args[at + 2] }
  end
  return changes
end

-- What an entry is to be in the spare, its fields, where so much is removed behind it. nil where a placed batch is not
-- there.
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

-- Write entries into the spare, each as these fields say; those without any are left out. Returns how many.
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

-- log_compaction_copy: copy entries into the stream beside the log, without what goes and with what changes
-- KEYS[1] log       stream  record batches
-- KEYS[2] meta      hash    identity, offsets, epochs, totals
-- KEYS[3] producers hash    producer id -> last batches
-- KEYS[4] spare     stream  beside the log
-- ARGV[1] topic_id   ARGV[2] run_id   ARGV[3] epoch   ARGV[4] start   ARGV[5] token
-- ARGV[6] copied   entries that are in the spare
-- ARGV[7] cursor   the offset just past the last entry before these   ARGV[8] until   the same of the last of these
-- ARGV[9] removed_bytes   behind the cursor, in all   ARGV[10] removed_batches   likewise
-- ARGV[11] dropped   offsets just past the batches that go, with blanks between
-- ARGV[12..] change   three for each batch that changes: the offset just past it, `size max_timestamp crc`, and the
-- batch, or '' where it lies at `<log>:<offset>.<token>`
-- Returns {code, status, copied}; status: ready | lost (the partition or the lease is not what it was: give up)
-- Codes: GONE
function compaction.copy(keys, args)
  local log_key, until_offset = keys[1], value.number(args[8], 'until')
  local bytes, batches = value.number(args[9], 'removed_bytes'), value.number(args[10], 'removed_batches')
  local is_as_seen = compaction.is_as_seen(keys, args)
  if is_as_seen == nil then
    return { code.GONE, '', 0 }
  end
  local changes = compaction.changes(args)
  local entries = redis.call('XRANGE', log_key, '(' .. args[7] .. '-0', args[8] .. '-0', 'COUNT', log.STEP)
  if not is_as_seen or #entries == 0 or tonumber(log.next_offset(entries[#entries])) ~= until_offset then
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
      written[at] = compaction.fields(log_key, entry, change, args[5], bytes, batches)
      if not written[at] then
        return { code.NONE, 'lost', 0 }
      end
    end
  end
  return { code.NONE, 'ready', args[6] + compaction.write(keys, entries, written) } -- first write
end
redis.register_function{
  function_name = 'korvet_log_compaction_copy',
  callback = compaction.copy,
  description = 'copy entries into the stream beside the log, without what goes and with what changes',
}

-- Make the log's Redis groups at the spare, where they stand; the totals are the log's.
function compaction.keep_groups(keys, totals)
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', keys[1])) do
    local group = value.pairs(flat)
    local id = group['last-delivered-id']
    local read = log.batches_below(keys[4], string.match(id, '^%d+'), totals)
    redis.call('XGROUP', 'CREATE', keys[4], group.name, id, 'ENTRIESREAD', value.integer(read))
  end
end

-- The spare, which now holds all that stays, becomes the log.
function compaction.take_place(keys, args, totals, former_key)
  local last = redis.call('XREVRANGE', keys[4], '+', '-', 'COUNT', 1)[1]
  redis.call('XSETID', keys[4], last[1], 'ENTRIESADDED', (string.match(totals, '%d+$')))
  compaction.keep_groups(keys, totals)
  redis.call('RENAME', keys[1], former_key)
  redis.call('RENAME', keys[4], keys[1])
  redis.call('RENAME', former_key, keys[4])
  local lease = string.match(redis.call('HGET', keys[2], 'compaction'), '^%S+ %d+')
  redis.call('HSET', keys[2], 'compaction', lease .. ' done', 'cleaned', args[9], 'totals', totals)
  for at = 10, #args do
    redis.call('ZREMRANGEBYSCORE', keys[5], args[at], args[at])
  end
end

-- log_compaction_swap: copy what came behind, and put the stream beside the log in its place
-- KEYS[1] log       stream  record batches
-- KEYS[2] meta      hash    identity, offsets, epochs, totals
-- KEYS[3] producers hash    producer id -> last batches
-- KEYS[4] spare     stream  beside the log
-- KEYS[5] aborted   zset    (optional) `first last producer_id stable` by the last offset
-- ARGV[1] topic_id   ARGV[2] run_id   ARGV[3] epoch   ARGV[4] start   ARGV[5] token
-- ARGV[6] copied   entries that are in the spare
-- ARGV[7] cursor   the offset just past the last entry that was looked at
-- ARGV[8] grown_bytes   of the whole log, where it is larger than before; else 0
-- ARGV[9] cleaned   the offset below which each key was looked at
-- ARGV[10..] marker   offsets of the markers that are gone, of aborted transactions
-- Returns {code, status, copied, cursor}; status: more (call again with copied and cursor) | done | lost (the partition
-- or the lease is not what it was: give up)
-- Codes: GONE
-- Source: UnifiedLog.replaceSegments
function compaction.swap(keys, args)
  local grown_bytes, former_key = value.number(args[8], 'grown_bytes'), log.spare_key(keys[1]) .. ':former'
  value.number(args[9], 'cleaned')
  local is_as_seen = compaction.is_as_seen(keys, args)
  if is_as_seen == nil then
    return { code.GONE, '', 0, '' }
  end
  -- Fails while the slot is on its way, when a RENAME to a key that is not there would.
  redis.call('EXISTS', keys[1], keys[4], former_key)
  local entries = redis.call('XRANGE', keys[1], '(' .. args[7] .. '-0', '+', 'COUNT', log.STEP)
  if not is_as_seen or #entries == 0 and redis.call('XLEN', keys[4]) == 0 then
    return { code.NONE, 'lost', 0, '' }
  end
  local totals = redis.call('HGET', keys[2], 'totals')
  local written = {}
  for at, entry in ipairs(entries) do
    written[at] = compaction.fields(keys[1], entry, nil, args[5], grown_bytes, 0)
  end
  local copied = args[6] + compaction.write(keys, entries, written) -- first write
  if #entries == log.STEP then
    return { code.NONE, 'more', copied, log.next_offset(entries[#entries]) }
  end
  local running_max, bytes, batches = string.match(totals, '^(%S+) (%d+) (%d+)$')
  totals = string.format('%s %d %s', running_max, bytes + grown_bytes, batches)
  compaction.take_place(keys, args, totals, former_key)
  -- As after a trim: who follows the log asks before it trusts what it remembers.
  redis.call('SPUBLISH', keys[1], '-1 -1')
  return { code.NONE, 'done', copied, '' }
end
redis.register_function{
  function_name = 'korvet_log_compaction_swap',
  callback = compaction.swap,
  flags = { 'allow-oom' },
  description = 'copy what came behind, and put the stream beside the log in its place',
}

-- log_compaction_end: remove what a compaction needs no more, and then give its lease back
-- KEYS[1] log       stream  record batches
-- KEYS[2] meta      hash    identity, offsets, epochs, totals
-- KEYS[3] producers hash    producer id -> last batches
-- KEYS[4] spare     stream  beside the log
-- ARGV[1] topic_id   ARGV[2] token
-- ARGV[3] run_id   (optional) given with the next two where nothing was to be changed: where these are still right,
-- ARGV[4] epoch    (optional)
-- ARGV[5] cleaned  (optional) the offset below which each key was looked at is remembered
-- Returns {code, more}; more is 1 while something is left: call again; may be repeated
-- Codes: GONE
function compaction.finish(keys, args)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'compaction', 'run_id', 'epoch')
  local cleaned = args[5] and meta[3] == args[3] and meta[4] == args[4] and value.number(args[5], 'cleaned')
  if meta[1] ~= args[1] or redis.call('EXISTS', keys[1]) == 0 then
    return { code.GONE, 0 }
  elseif string.match(meta[2] or '', '^%S+') ~= args[2] then
    return { code.NONE, 0 }
  end
  if log.discard_spare(keys[1], keys[4]) then -- first write
    return { code.NONE, 1 }
  end
  if cleaned then
    redis.call('HSET', keys[2], 'cleaned', value.integer(cleaned))
  end
  redis.call('HDEL', keys[2], 'compaction')
  return { code.NONE, 0 }
end
redis.register_function{
  function_name = 'korvet_log_compaction_end',
  callback = compaction.finish,
  flags = { 'allow-oom' },
  description = 'remove what a compaction needs no more, and then give its lease back',
}
