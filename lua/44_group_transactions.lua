-- Offsets that a transaction commits. Source: OffsetMetadataManager.
--
-- The pending hash: producer id -> `epoch closed_ordinal open_ordinal transactional_id`, as in a partition, and
-- `:producer id` -> the offsets of its open transaction, place -> {position, order, the position before}. A late commit
-- is known by its ordinal. The field of the empty name is where it was last looked for those to be forgotten. The group
-- hash's field transactions is the number of open ones; with any, the group does not expire.
--
-- What was committed later counts, whenever its transaction ends. Commits of transactions are numbered, `#` is the last
-- number, and while others are open `=` has what transactions committed: place -> {position, order}. A position that is
-- neither this nor the one before is a later commit without a transaction.
group.USAGE.txn_commit = {
  'outages id locator member_id instance_id generation retention producer_id producer_epoch ordinal transactional_id '
    .. '[topic:partition position ...]', ' attached pending',
}
group.USAGE.txn_end = { 'producer_id ordinal decision', ' attached pending' }
-- Producers looked at, to be forgotten, when a new one comes.
group.SWEEP = 10

-- The group as the functions of groups see it.
function group.open_beside(keys)
  return group.open({ unpack(keys, 1, group.KEYS) })
end

-- Why a commit in a transaction is refused. Producers of before KIP-447 name neither member nor generation.
-- Source: OffsetMetadataManager.validateTransactionalOffsetCommit, ClassicGroup.validateOffsetCommit
function group.txn_commit_refusal(g, id, instance_id, generation)
  if group.is_consumer(g) then
    return group.consumer.txn_commit_refusal(g, id, instance_id, generation)
  elseif not group.exists(g) then
    return generation >= 0 and code.ILLEGAL_GENERATION or nil
  elseif generation < 0 and (group.is(g, 'Empty') or id == '' and instance_id == '') then
    return nil
  end
  local refusal = group.refusal(g, id, instance_id)
  return refusal or generation ~= g.fields.generation and code.ILLEGAL_GENERATION or nil
end

-- Why a commit of this ordinal is refused: its transaction was ended here, or a later one is open.
function group.ordinal_refusal(pending_key, known, producer_id, epoch, ordinal)
  local last_epoch = string.match(redis.call('HGET', pending_key, producer_id) or '', '^%-?%d+')
  if last_epoch and tonumber(last_epoch) > epoch then
    return code.INVALID_PRODUCER_EPOCH
  end
  return (ordinal <= known.closed or ordinal < known.open) and code.INVALID_TXN_STATE or nil
end

-- The offsets that a producer's open transaction holds: place -> {position, order, before}.
function group.held_offsets(pending_key, producer_id)
  local packed = redis.call('HGET', pending_key, ':' .. producer_id)
  return packed and cmsgpack.unpack(packed) or {}
end

-- The places whose offsets open transactions may change, as a set.
function group.unstable(pending_key)
  local places, flat = {}, redis.call('HGETALL', pending_key)
  for at = 1, #flat, 2 do
    if string.sub(flat[at], 1, 1) == ':' then
      for place in pairs(cmsgpack.unpack(flat[at + 1])) do
        places[place] = true
      end
    end
  end
  return places
end

-- Forget what transactions hold of some places, whose offsets are deleted. Source: OffsetMetadataManager.replay
function group.drop_held(pending_key, places)
  local dropped, changes, flat = {}, {}, redis.call('HGETALL', pending_key)
  for _, place in ipairs(places) do
    dropped[place] = true
  end
  for at = 1, #flat, 2 do
    if string.sub(flat[at], 1, 1) == ':' then
      local kept, is_less = {}, false
      for place, held in pairs(cmsgpack.unpack(flat[at + 1])) do
        kept[place] = not dropped[place] and held or nil
        is_less = is_less or dropped[place]
      end
      if is_less then
        changes[#changes + 1] = flat[at]
        changes[#changes + 1] = cmsgpack.pack(kept)
      end
    end
  end
  group.in_batches('HSET', pending_key, changes) -- first write
end

-- Forget what open transactions hold, as where the group is deleted. They may commit offsets again, which make the
-- group anew; what was ended is remembered for a while.
function group.close_pending(pending_key)
  local flat = redis.call('HGETALL', pending_key)
  for at = 1, #flat, 2 do
    if not string.find(flat[at], '^%d') then
      redis.call('HDEL', pending_key, flat[at])
    else
      local known = log.transaction_of(pending_key, flat[at])
      known.open = -1
      local epoch = string.match(flat[at + 1], '^%-?%d+')
      redis.call('HSET', pending_key, flat[at], log.transaction_entry(epoch, known))
    end
  end
  redis.call('PEXPIREAT', pending_key, value.integer(value.now_ms() + group.BACKSTOP))
end

-- Forget a few producers whose last transaction was closed more than a day ago; an ordinal is a time.
function group.sweep_pending(pending_key, now)
  local cursor = redis.call('HGET', pending_key, '') or '0'
  local scanned = redis.call('HSCAN', pending_key, cursor, 'COUNT', group.SWEEP)
  local flat = scanned[2]
  redis.call('HSET', pending_key, '', scanned[1])
  for at = 1, #flat, 2 do
    local closed = string.match(flat[at + 1], '^%-?%d+ (%d+) %-1 ')
    if string.find(flat[at], '^%d') and closed and closed / 1000 < now - group.BACKSTOP then
      redis.call('HDEL', pending_key, flat[at])
    end
  end
end

-- Hold offsets for a producer's transaction.
local function hold(g, pending_key, args, known)
  local producer_id, ordinal = args[8], tonumber(args[10])
  local offsets = known.open == ordinal and group.held_offsets(pending_key, producer_id) or {}
  local order = tonumber(redis.call('HGET', pending_key, '#') or 0) + 1
  for at = 12, #args, 2 do
    offsets[args[at]] = { args[at + 1], order, redis.call('HGET', g.keys[5], args[at]) or '' }
  end
  if known.open < 0 then
    group.set(g, 'transactions', (g.fields.transactions or 0) + 1)
  end
  known.open, known.transactional_id = ordinal, args[11]
  group.save(g)
  local entry = log.transaction_entry(args[9], known)
  local packed = cmsgpack.pack(offsets)
  redis.call('HSET', pending_key, producer_id, entry, ':' .. producer_id, packed, '#', value.integer(order))
  redis.call('PERSIST', pending_key)
end

-- group_txn_commit: hold offsets that a transaction commits when it is committed
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- KEYS[6] attached hash  topic:partition -> id of the topic with a Redis group there
-- KEYS[7] pending  hash  producer id -> its transactions and the offsets of the open one
-- ARGV[1] outages: `served_until from-to ...` or ''
-- ARGV[2] id and ARGV[3] locator of a new group, '' while it is not in the index
-- ARGV[4] member_id or ''   ARGV[5] instance_id or ''   ARGV[6] generation or -1   ARGV[7] retention ms
-- ARGV[8] producer_id   ARGV[9] producer_epoch   ARGV[10] ordinal of the transaction   ARGV[11] transactional_id
-- ARGV[12..] offsets: `topic:partition`, `offset leader_epoch topic_id metadata`, ...
-- Returns code; may be repeated
-- Codes: LATE, UNINDEXED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INVALID_PRODUCER_EPOCH,
-- INVALID_TXN_STATE (the ordinal is that of a transaction which was ended here)
-- Source: OffsetMetadataManager.commitTransactionalOffset
function group.txn_commit(keys, args)
  group.expect(keys, args, 'txn_commit', 11, 2, 2)
  if group.is_late(args[1]) then
    return code.LATE
  end
  local generation, retention = value.number(args[6], 'generation'), value.number(args[7], 'retention')
  local epoch, ordinal = value.number(args[9], 'producer_epoch'), value.number(args[10], 'ordinal')
  local g, known = group.open_beside(keys), log.transaction_of(keys[7], args[8])
  group.advance(g, args[1])
  local refusal = group.ordinal_refusal(keys[7], known, args[8], epoch, ordinal)
    or group.txn_commit_refusal(g, args[4], args[5], generation)
  if refusal or #args == 11 then
    group.save(g)
    return refusal or code.NONE
  elseif not group.exists(g) then
    if args[2] == '' then
      return code.UNINDEXED
    end
    group.found(g, args[2], args[3], retention)
  elseif group.is(g, 'Empty') then
    group.set(g, 'retention', retention)
    group.set(g, 'expires_at', g.now + retention)
  end
  hold(g, keys[7], args, known) -- first write
  return code.NONE
end
redis.register_function{
  function_name = 'korvet_group_txn_commit',
  callback = group.txn_commit,
  flags = { 'allow-oom' },
  description = 'hold offsets that a transaction commits when it is committed',
}

-- Of the offsets that a transaction held, those that nobody has committed later: [place, position, ...]. They are noted
-- where another transaction is open.
local function latest(g, pending_key, held)
  local packed = redis.call('HGET', pending_key, '=')
  local applied, offsets = packed and cmsgpack.unpack(packed) or {}, {}
  for place, of in pairs(held) do
    local position, order, before = of[1], of[2], of[3]
    local current, last = redis.call('HGET', g.keys[5], place) or '', applied[place]
    if current == before or last and current == last[1] and last[2] < order then
      offsets[#offsets + 1] = place
      offsets[#offsets + 1] = position
      applied[place] = { position, order }
    end
  end
  if #offsets > 0 and (g.fields.transactions or 0) > 1 then
    redis.call('HSET', pending_key, '=', cmsgpack.pack(applied)) -- first write
  end
  return offsets
end

-- The offsets that become committed, [place, position, ...], of a group that goes on with one transaction less.
local function release(g, pending_key, held, is_committed)
  local offsets = {}
  if not group.exists(g) then
    return offsets
  end
  if is_committed then
    offsets = latest(g, pending_key, held)
    if group.is(g, 'Empty') then
      group.set(g, 'expires_at', g.now + (g.fields.retention or 0))
    end
  end
  group.set(g, 'transactions', math.max((g.fields.transactions or 0) - 1, 0))
  return offsets
end

-- The places of positions, [place, topic_id, ...].
local function committed_places(offsets)
  local places = {}
  for at = 1, #offsets, 2 do
    places[at] = offsets[at]
    places[at + 1] = string.match(offsets[at + 1], '^%S+ %S+ (%S*)') or ''
  end
  return places
end

-- group_txn_end: commit or forget the offsets that a transaction holds
-- Those of an older transaction that was never ended are forgotten.
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- KEYS[6] attached hash  topic:partition -> id of the topic with a Redis group there
-- KEYS[7] pending  hash  producer id -> its transactions and the offsets of the open one
-- ARGV[1] producer_id   ARGV[2] ordinal of the transaction   ARGV[3] decision   commit or abort
-- Returns {code, [`topic:partition`, topic_id, ...]}, the places whose offsets became committed by this call; may be
-- repeated
-- Source: OffsetMetadataManager.replayEndTransactionMarker
function group.txn_end(keys, args)
  group.expect(keys, args, 'txn_end', 3, nil, 2)
  local producer_id, ordinal = args[1], value.number(args[2], 'ordinal')
  if args[3] ~= 'commit' and args[3] ~= 'abort' then
    error('decision is neither commit nor abort: ' .. args[3], 0)
  end
  local pending_key = keys[7]
  local known = log.transaction_of(pending_key, producer_id)
  if ordinal <= known.closed or ordinal < known.open then
    return { code.NONE, {} }
  end
  local g, is_new, offsets = group.open_beside(keys), known.closed < 0, {}
  if known.open >= 0 then
    local held = group.held_offsets(pending_key, producer_id)
    offsets = release(g, pending_key, held, args[3] == 'commit' and known.open == ordinal)
    group.save(g, offsets) -- first write
  end
  local epoch = string.match(redis.call('HGET', pending_key, producer_id) or '-1', '^%-?%d+')
  known.closed, known.open = ordinal, -1
  redis.call('HSET', pending_key, producer_id, log.transaction_entry(epoch, known)) -- first write of what was not held
  redis.call('HDEL', pending_key, ':' .. producer_id)
  if is_new then
    group.sweep_pending(pending_key, g.now)
  end
  if (g.fields.transactions or 0) == 0 then
    redis.call('HDEL', pending_key, '=', '#')
    redis.call('PEXPIREAT', pending_key, value.integer(g.now + group.BACKSTOP))
  end
  return { code.NONE, committed_places(offsets) }
end
redis.register_function{
  function_name = 'korvet_group_txn_end',
  callback = group.txn_end,
  flags = { 'allow-oom' },
  description = 'commit or forget the offsets that a transaction holds',
}
