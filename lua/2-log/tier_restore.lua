-- A partition from its snapshot in the tier: after Redis lost it, or came back without its last writes.

-- What the snapshot's members say: nil if they do not follow each other from the log start to the end of the tier;
-- else the running values of the last one, and the members for ZADD.
function tier.members_of(params)
  local reached, running, members = params.log_start, nil, {}
  for at = 1, #params.members, 2 do
    local next_offset, text = tonumber(params.members[at]), params.members[at + 1]
    local first, _, _, its_running = tier.parsed(text)
    if next_offset > params.log_start then
      if first > reached then
        return nil
      end
      reached = next_offset
    end
    running = its_running
    members[#members + 1] = value.integer(next_offset)
    members[#members + 1] = text
  end
  return reached == math.max(params.log_start, params.tier_end) and (running or '-1 0') or nil, members
end

-- The first offset of the epochs that begin after one, or nil.
function tier.later_epoch(epochs, epoch)
  for later, start in string.gmatch(epochs or '', '(%d+):(%d+)') do
    if tonumber(later) > epoch then
      return tonumber(start)
    end
  end
  return nil
end

-- True if a snapshot's list leaves no hole in the place of one that somebody deleted: segments that the snapshot does
-- not know may have been all that there was of their records.
function tier.may_replace(meta, past, log_end)
  return tier.held_from(meta[2], meta[4]) <= past and past <= log_end
end

-- True if the list has more segments than a snapshot that ends where it does. Merges and shelves only take segments
-- away, so this list is the older one, and may name objects that are gone.
function tier.is_finer(tier_key, start, tier_end, params)
  local from, count = math.max(tonumber(start), params.log_start), 0
  for at = 1, #params.members, 2 do
    count = tonumber(params.members[at]) > from and count + 1 or count
  end
  return tier_end == params.tier_end and redis.call('ZCOUNT', tier_key, '(' .. value.integer(from), '+inf') > count
end

-- What a partition needs. create: all of it. move: its log ends below the tier, so it goes on behind that. list: only
-- the list of segments, which is not there, or as it was before a merge. whole: nothing. conflict: it is of another
-- history, or since it went back somebody has written other records to offsets that the segments hold.
function tier.need(keys, meta, params)
  local log_end, tier_end = tonumber(meta[3] or 0), tonumber(meta[5] or -1)
  local past = math.max(params.tier_end, params.log_start)
  if not meta[1] then
    return 'create'
  elseif meta[6] and meta[6] ~= params.token then
    return 'conflict'
  elseif not tier.is_whole(keys[7], meta[1], meta[2], meta[5]) then
    return tier.may_replace(meta, past, log_end) and 'list' or 'conflict'
  elseif tier_end > params.tier_end or tier_end == params.tier_end and log_end >= past then
    return tier.is_finer(keys[7], meta[2], tier_end, params) and 'list' or 'whole'
  end
  return tier.missing(meta, params, log_end, past)
end

-- True if the log has records of another history than the snapshot: an epoch of the snapshot is unknown here, although
-- the log holds offsets that it began before.
function tier.diverges(theirs, own, held_from, log_end)
  local known, started = {}, nil
  for epoch in string.gmatch(own or '', '(%d+):%d+') do
    known[epoch] = true
  end
  for epoch, start in string.gmatch(theirs .. ',0:' .. value.integer(log_end), '(%d+):(%d+)') do
    -- The epoch before this one ends here.
    if started and not known[started] and tonumber(start) > held_from then
      return true
    elseif tonumber(start) >= log_end then
      return false
    end
    started = epoch
  end
  return false
end

-- What a log needs that knows less than the snapshot.
function tier.missing(meta, params, log_end, past)
  local later = tier.later_epoch(meta[8], params.leader_epoch)
  if later and later < math.min(log_end, past) then
    return 'conflict'
  elseif tier.diverges(params.epochs, meta[8], tier.held_from(meta[2], meta[4]), math.min(log_end, past)) then
    return log_end <= past and 'move' or 'conflict'
  end
  return log_end < past and 'move' or 'list'
end

-- The code that refuses the restoration, or nil.
function tier.restore_refusal(keys, params, meta, running)
  if not running then
    return code.LOST
  end
  -- A log without its meta hash gets that from the log itself, at its next use.
  local is_rebuilt = not meta[1] and redis.call('EXISTS', keys[1]) == 1
  local is_other = meta[1] and meta[1] ~= params.topic_id
  return (meta[10] or is_rebuilt or is_other) and code.GONE or nil
end

-- The epochs of a snapshot that began below an offset.
function tier.epochs_below(epochs, offset)
  local kept = {}
  for epoch, start in string.gmatch(epochs, '(%d+):(%d+)') do
    if tonumber(start) < offset then
      kept[#kept + 1] = epoch .. ':' .. start
    end
  end
  return #kept > 0 and table.concat(kept, ',') or '0:' .. value.integer(offset)
end

-- Let the log begin and end at an offset; entries below it are removed later. Without a run id the next use begins a
-- leader epoch above all that there were.
function tier.move_to(keys, params, meta, log_end, running)
  local epoch, batches = math.max(tonumber(meta[7] or 0), params.leader_epoch), string.match(meta[9] or '', '%d+$')
  if redis.call('EXISTS', keys[1]) == 0 then
    redis.call('XGROUP', 'CREATE', keys[1], 'korvet', '0', 'MKSTREAM')
    redis.call('XGROUP', 'DESTROY', keys[1], 'korvet')
  end
  redis.call('UNLINK', keys[4])
  redis.call('HSETNX', keys[3], '', '0 0 0 0')
  log.make_transaction_keys(keys)
  redis.call('HDEL', keys[2], 'first_open', 'last_aborted')
  redis.call(
    'HSET', keys[2], 'topic_id', params.topic_id, 'run_id', '', 'replid', server.replid(),
    'start', value.integer(math.max(tonumber(meta[2] or 0), params.log_start)), 'end', value.integer(log_end),
    'epoch', value.integer(epoch), 'epochs', tier.epochs_below(params.epochs, log_end),
    'totals', running .. ' ' .. (batches or '0')
  )
  redis.call('XSETID', keys[1], value.integer(log_end) .. '-0')
end

-- Write the list of segments and the fields that go with it.
function tier.write_list(keys, params, held_from, members)
  local tier_key, start = keys[7], redis.call('HGET', keys[2], 'start')
  redis.call('UNLINK', tier_key)
  tier.name_list(tier_key, params.topic_id, start, params.token)
  for at = 1, #members, tier.AT_ONCE do
    redis.call('ZADD', tier_key, unpack(members, at, math.min(#members, at + tier.AT_ONCE - 1)))
  end
  redis.call(
    'HSET', keys[2], 'tier', params.token, 'tier_end', value.integer(params.tier_end),
    'local_start', value.integer(held_from), 'cleaned', tier.FENCE
  )
  redis.call('SPUBLISH', keys[1], '-1 -1')
end

-- Let the next use begin a leader epoch above the snapshot's.
function tier.raise_epoch(meta_key, leader_epoch)
  if tonumber(redis.call('HGET', meta_key, 'epoch')) < leader_epoch then
    redis.call('HSET', meta_key, 'epoch', value.integer(leader_epoch), 'run_id', '')
  end
end

-- Remove the next entries below the first offset that the log holds. Returns true if some may be left.
function tier.drop_below(keys, held_from)
  local below, is_more = log.page(keys[1], '-', value.integer(held_from) .. '-0')
  is_more = log.forget_aborted(keys[5], held_from) or is_more
  log.drop(keys[1], below)
  return is_more
end

korvet.define({
  name = 'tier_restore', flags = { 'allow-oom' },
  description = 'restore a partition from its snapshot in the tier, for an operator',
  keys = '@log   @open   tier zset as of tier_add',
  args = [[
    topic_id   step:look|restore look: say what it would do   token   leader_epoch:int   epochs
    log_start:int   tier_end:int as the snapshot has them   members*2<=2050 offset after a segment and its text, in turn
  ]],
  returns = [[{code, status, log_start, log_end, more}: the log's as they were. status: create (nothing was there) |
    move (the log ended below the tier's end, and begins there) | list (only segments were missing, or listed as before
    a merge) | whole (nothing was missing) | conflict (another history, or other records were written to offsets that
    the segments hold); more is 1 while entries may be left to remove: call again]],
  bound = '1025 segments; 100 entries a call, about 1 MiB, and 1000 aborted transactions',
  codes = 'GONE (the keys are another topic\'s, or one that is being deleted), LOST (the members have a gap)',
  notes = [[May be repeated. Deleted records stay deleted: of two log starts the later one counts, which korvet_log_trim
    sets afterwards. Transactions that were open are gone, and the sequences of producers unless they were there.]],
}, function(keys, params)
  local running, members = tier.members_of(params)
  local meta = redis.call(
    'HMGET', keys[2], 'topic_id', 'start', 'end', 'local_start', 'tier_end', 'tier', 'epoch', 'epochs', 'totals',
    'deleting'
  )
  local refusal = tier.restore_refusal(keys, params, meta, running)
  if refusal then
    return { refusal, '', -1, -1, 0 }
  end
  local status = tier.need(keys, meta, params)
  local held_from = tier.held_from(meta[2] or 0, meta[4])
  local reply = { code.NONE, status, tonumber(meta[2] or -1), tonumber(meta[3] or -1), 0 }
  if params.step == 'look' or status == 'conflict' then
    return reply
  elseif status == 'create' or status == 'move' then
    held_from = math.max(params.tier_end, params.log_start)
    tier.move_to(keys, params, meta, held_from, running) -- first write
  end
  if status ~= 'whole' then
    tier.write_list(keys, params, held_from, members)
  end
  tier.raise_epoch(keys[2], params.leader_epoch)
  reply[5] = tier.drop_below(keys, held_from) and 1 or 0
  return reply
end)
