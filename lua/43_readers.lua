-- Who reads what for which group. A Fetch names no group; the SyncGroup before it does, by the same client id from the
-- same host. The groups hash of a reader: place -> one or two groups, each as `until_ms length group_id `, the one that
-- lasts longest first. Two are enough to know that no single one fits. The field of the empty name holds the time from
-- which on those that are over are looked for.
local reader = {}

-- The groups of a place that last beyond now: [until_ms, group_id, ...], at most two.
function reader.groups(text, now)
  local groups, at = {}, 1
  while text and at <= #text do
    local ends, length, from = string.match(text, '^(%d+) (%d+) ()', at)
    if not ends then
      error('a reader\'s groups are none of korvet\'s: ' .. text, 0)
    end
    if tonumber(ends) > now then
      groups[#groups + 1] = tonumber(ends)
      groups[#groups + 1] = string.sub(text, from, from + length - 1)
    end
    at = from + length + 1
  end
  return groups
end

-- A group of a place as text. The id is not formatted, for a zero byte would end it.
function reader.noted(group_id, ends)
  return string.format('%d %d ', ends, #group_id) .. group_id .. ' '
end

-- The groups of a place as text, with a further one, which lasts longest.
function reader.with(groups, group_id, ends)
  local text = reader.noted(group_id, ends)
  for at = 1, #groups, 2 do
    if groups[at + 1] ~= group_id then
      return text .. reader.noted(groups[at + 1], groups[at])
    end
  end
  return text
end

-- The places of which no group lasts beyond now; nil where it is not time to look for them, which it is once in the
-- time that a note lasts, so that each note pays for its own end.
function reader.ended(key, now)
  if tonumber(redis.call('HGET', key, '') or 0) > now then
    return nil
  end
  local ended, flat = {}, redis.call('HGETALL', key)
  for at = 1, #flat, 2 do
    if flat[at] ~= '' and #reader.groups(flat[at + 1], now) == 0 then
      ended[#ended + 1] = flat[at]
    end
  end
  return ended
end

-- reader_note: a client at a host reads places for a group
-- KEYS[1] groups hash  topic:partition -> the groups that the reader reads it for
-- ARGV[1] group_id   ARGV[2] ttl ms   ARGV[3..] places: `topic:partition`, ...
-- Returns 0; may be repeated
function reader.note(keys, args)
  local key, group_id, ttl = keys[1], args[1], value.number(args[2], 'ttl')
  local now = value.now_ms()
  local ends = now + ttl
  local ended = reader.ended(key, now)
  local noted = ended and { '', value.integer(ends) } or {}
  for first = 3, #args, group.BATCH do
    local last = math.min(first + group.BATCH - 1, #args)
    local known = redis.call('HMGET', key, unpack(args, first, last))
    for at = first, last do
      noted[#noted + 1] = args[at]
      noted[#noted + 1] = reader.with(reader.groups(known[at - first + 1], now), group_id, ends)
    end
  end
  group.in_batches('HDEL', key, ended or {}) -- first write
  group.in_batches('HSET', key, noted)
  redis.call('PEXPIRE', key, ttl)
  return code.NONE
end
redis.register_function{
  function_name = 'korvet_reader_note',
  callback = reader.note,
  flags = { 'allow-oom' },
  description = 'a client at a host reads places for a group',
}

-- reader_find: the groups that a client at a host reads places for
-- KEYS[1] groups hash  topic:partition -> the groups that the reader reads it for
-- ARGV[1..] places: `topic:partition`, ...
-- Returns [group_id, ...], one for each: '' where there is none, or more than one
function reader.find(keys, args)
  local now, found = value.now_ms(), {}
  for first = 1, #args, group.BATCH do
    local last = math.min(first + group.BATCH - 1, #args)
    local texts = redis.call('HMGET', keys[1], unpack(args, first, last))
    for at = first, last do
      local groups = reader.groups(texts[at - first + 1], now)
      found[at] = #groups == 2 and groups[2] or ''
    end
  end
  return found
end
redis.register_function{
  function_name = 'korvet_reader_find',
  callback = reader.find,
  flags = { 'no-writes', 'allow-oom' },
  description = 'the groups that a client at a host reads places for',
}
