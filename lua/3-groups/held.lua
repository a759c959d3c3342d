-- The offsets that open transactions hold in a group: in its pending hash, beside the producers' entries.
--
-- Each hold has a number, and the field `#` is the last one. The other fields:
-- * `:` and a producer id -> `number pieces done` of its last hold: the number of its pieces, and of the ended ones.
-- * `:`, the producer id, a space and a piece's number -> partition -> {position, number, the position before}. A piece
--   with group.PIECE partitions is full.
-- * `@` and a partition -> `number count`: how many pieces hold it.
-- * `=` and a partition -> `number position`, which a transaction committed while others were open.
-- * `-` and a partition -> `number`: its offset was deleted, with all earlier holds of it.
-- * `!` -> the last number when the group was deleted: every hold up to it is void, as if it were not there.
-- * `~` -> the last number when the last open transaction ended: earlier commits of transactions no longer matter.
-- So a deletion costs nothing for each hold, and later calls sweep void holds a few at a time.
group.PIECE = 1000
-- The pieces of one transaction.
group.PIECES = 64
-- The fields that a new producer's call looks at, to forget void ones.
group.SWEEP = 10

-- Every hold up to this number is void.
function group.void_until(pending_key)
  return tonumber(redis.call('HGET', pending_key, '!') or 0)
end

-- A numbered text as its number and the rest; nil if it is void.
function group.numbered(text, void)
  local number, rest = string.match(text or '', '^(%d+) ?(.*)$')
  number = tonumber(number)
  if number and number > void then
    return number, rest
  end
end

-- A producer's transactions, as in a partition, and its held pieces. A transaction with void holds alone is not open.
function group.pending_of(pending_key, producer_id)
  local known, void = log.transaction_of(pending_key, producer_id), group.void_until(pending_key)
  local head = redis.call('HGET', pending_key, ':' .. producer_id) or ''
  local number, pieces, done = string.match(head, '^(%d+) (%d+) (%d+)$')
  if head ~= '' and not number then
    value.unreadable(pending_key, ':' .. producer_id)
  end
  known.void, known.pieces, known.done = void, tonumber(pieces or 0), tonumber(done or 0)
  if known.open >= 0 and tonumber(number or 0) <= void then
    known.open = -1
  end
  return known
end

function group.piece_field(producer_id, number)
  return ':' .. producer_id .. ' ' .. value.integer(number)
end

function group.piece(pending_key, producer_id, number)
  local packed = redis.call('HGET', pending_key, group.piece_field(producer_id, number))
  return packed and cmsgpack.unpack(packed) or {}
end

-- The values of partitions in a hash, read in batches: partition -> value, or false.
function group.values_at(key, prefix, partitions)
  local found, fields = {}, {}
  for at, partition in ipairs(partitions) do
    fields[at] = prefix .. partition
  end
  for first = 1, #fields, group.BATCH do
    local last = math.min(first + group.BATCH - 1, #fields)
    local some = redis.call('HMGET', key, unpack(fields, first, last))
    for at = first, last do
      found[partitions[at]] = some[at - first + 1]
    end
  end
  return found
end

function group.keys_of(held)
  local partitions = {}
  for partition in pairs(held) do
    partitions[#partitions + 1] = partition
  end
  return partitions
end

-- The partitions, as a set, with offsets that open transactions may change.
function group.unstable_of(pending_key, partitions)
  local void, unstable = group.void_until(pending_key), {}
  for partition, counted in pairs(group.values_at(pending_key, '@', partitions)) do
    unstable[partition] = group.numbered(counted, void) and true or nil
  end
  return unstable
end

-- Change the number of pieces that hold some partitions by a step; `number` is the hold's.
function group.count_held(pending_key, partitions, step, number, void)
  local set, removed = {}, {}
  for partition, counted in pairs(group.values_at(pending_key, '@', partitions)) do
    local last, count = group.numbered(counted, void)
    count = (last and tonumber(count) or 0) + step
    if count > 0 then
      set[#set + 1] = '@' .. partition
      set[#set + 1] = value.integer(math.max(number, last or 0)) .. ' ' .. value.integer(count)
    elseif counted then
      removed[#removed + 1] = '@' .. partition
    end
  end
  group.in_batches('HSET', pending_key, set)
  group.in_batches('HDEL', pending_key, removed)
end

-- The partitions of held offsets that count: neither void nor deleted since.
function group.live_partitions(pending_key, held, void)
  local live, deleted = {}, group.values_at(pending_key, '-', group.keys_of(held))
  for partition, of in pairs(held) do
    if of[2] > math.max(void, tonumber(deleted[partition] or 0)) then
      live[#live + 1] = partition
    end
  end
  return live
end

-- Forget the holds of some partitions with deleted offsets. Source: OffsetMetadataManager.replay
function group.drop_held(pending_key, partitions)
  local unstable = group.unstable_of(pending_key, partitions)
  local number, set, removed = redis.call('HGET', pending_key, '#'), {}, {}
  for partition in pairs(unstable) do
    set[#set + 1] = '-' .. partition
    set[#set + 1] = number
    removed[#removed + 1] = '@' .. partition
  end
  group.in_batches('HSET', pending_key, set) -- first write
  group.in_batches('HDEL', pending_key, removed)
end

-- Set one of the two marks to the last number: `!` if the group is deleted, `~` if no transaction is open. The ends of
-- transactions are remembered for a while.
function group.void_pending(pending_key, mark, now)
  local number = redis.call('HGET', pending_key, '#')
  if number then
    redis.call('HSET', pending_key, mark, number)
  end
  redis.call('PEXPIREAT', pending_key, value.integer(now + group.BACKSTOP))
end

-- The piece into which further offsets go: its number and its offsets.
local function open_piece(pending_key, producer_id, known)
  if known.pieces == 0 then
    return 1, {}
  end
  local held = group.piece(pending_key, producer_id, known.pieces)
  if #group.keys_of(held) >= group.PIECE then
    return known.pieces + 1, {}
  end
  return known.pieces, held
end

-- Hold offsets, partition -> position, for a producer's open transaction.
function group.hold_offsets(g, pending_key, producer_id, known, offsets)
  local number = tonumber(redis.call('HGET', pending_key, '#') or 0) + 1
  local at, held = open_piece(pending_key, producer_id, known)
  local partitions, new = group.keys_of(offsets), {}
  local before = group.values_at(g.keys[5], '', partitions)
  local is_live = {}
  for _, partition in ipairs(group.live_partitions(pending_key, held, known.void)) do
    is_live[partition] = true
  end
  for _, partition in ipairs(partitions) do
    if not is_live[partition] then
      new[#new + 1] = partition
    end
    held[partition] = { offsets[partition], number, before[partition] or '' }
  end
  local head = string.format('%d %d %d', number, math.max(at, known.pieces), known.done)
  local packed = cmsgpack.pack(held)
  redis.call('HSET', pending_key, '#', value.integer(number), ':' .. producer_id, head,
    group.piece_field(producer_id, at), packed)
  group.count_held(pending_key, new, 1, number, known.void)
  redis.call('PERSIST', pending_key)
end

-- The offsets of a held piece that nobody has committed later: [partition, position, ...]. They are noted if further
-- transactions or pieces may ask.
local function latest(g, pending_key, held, live, void, is_noted)
  local current = group.values_at(g.keys[5], '', live)
  local applied = group.values_at(pending_key, '=', live)
  local done_until = math.max(void, tonumber(redis.call('HGET', pending_key, '~') or 0))
  local offsets, noted = {}, {}
  for _, partition in ipairs(live) do
    local position, number, before = held[partition][1], held[partition][2], held[partition][3]
    local last_number, last = group.numbered(applied[partition], done_until)
    local now = current[partition] or ''
    if now == before or last_number and now == last and last_number < number then
      offsets[#offsets + 1] = partition
      offsets[#offsets + 1] = position
      noted[#noted + 1] = '=' .. partition
      noted[#noted + 1] = value.integer(number) .. ' ' .. position
    end
  end
  group.in_batches('HSET', pending_key, is_noted and noted or {}) -- first write
  return offsets
end

-- End as many pieces of a producer's transaction as one call may. Returns the offsets that become committed,
-- [partition, position, ...].
function group.end_pieces(g, pending_key, producer_id, known, is_committed)
  local offsets, ended = {}, 0
  while known.done < known.pieces and ended < group.PIECE do
    local field = group.piece_field(producer_id, known.done + 1)
    local held = group.piece(pending_key, producer_id, known.done + 1)
    local live = group.live_partitions(pending_key, held, known.void)
    known.done = known.done + 1
    if is_committed and group.exists(g) then
      local is_noted = (g.fields.transactions or 0) > 1 or known.done < known.pieces
      local some = latest(g, pending_key, held, live, known.void, is_noted)
      for _, part in ipairs(some) do
        offsets[#offsets + 1] = part
      end
      group.in_batches('HSET', g.keys[5], some)
    end
    group.count_held(pending_key, live, -1, 0, known.void)
    redis.call('HDEL', pending_key, field)
    ended = ended + #live
  end
  return offsets
end

-- Note the number of ended pieces of a producer's transaction.
function group.note_pieces(pending_key, producer_id, known)
  local number = string.match(redis.call('HGET', pending_key, ':' .. producer_id), '^%d+')
  local head = string.format('%d %d', known.pieces, known.done)
  redis.call('HSET', pending_key, ':' .. producer_id, number .. ' ' .. head)
end

-- Remove the remains of a producer's transaction.
function group.remove_pieces(pending_key, producer_id, known)
  local fields = { ':' .. producer_id }
  for number = known.done + 1, known.pieces do
    fields[#fields + 1] = group.piece_field(producer_id, number)
  end
  redis.call('HDEL', pending_key, unpack(fields))
end

-- Forget a few producers whose last transaction was closed more than a day ago, and a few void fields. An ordinal is a
-- time.
function group.sweep_pending(pending_key, now)
  local cursor, void = redis.call('HGET', pending_key, '') or '0', group.void_until(pending_key)
  local done_until = math.max(void, tonumber(redis.call('HGET', pending_key, '~') or 0))
  local scanned = redis.call('HSCAN', pending_key, cursor, 'COUNT', group.SWEEP)
  local flat = scanned[2]
  redis.call('HSET', pending_key, '', scanned[1])
  for at = 1, #flat, 2 do
    local closed = string.match(flat[at + 1], '^%-?%d+ (%d+) %-1 ')
    local is_old = string.find(flat[at], '^%d') and closed and closed / 1000 < now - group.BACKSTOP
    local is_void = string.find(flat[at], '^@') and not group.numbered(flat[at + 1], void)
      or string.find(flat[at], '^[=%-]') and not group.numbered(flat[at + 1], done_until)
    if is_old or is_void then
      redis.call('HDEL', pending_key, flat[at])
    end
  end
end
