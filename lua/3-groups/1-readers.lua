-- Readers are clients that read for groups. A Fetch names no group, but the SyncGroup before it does, by the same
-- client id from the same host. The groups hash of a reader: `topic:partition` -> one or two groups, each as `until_ms
-- length group_id `, the one that lasts longest first. Two are enough to know that no single group fits. The field of
-- the empty name holds the time of the next look for partitions whose groups ended. No group lasts for more than
-- LONGEST_MS.
local reader = { LONGEST_MS = 600000 }

-- The groups of a partition that last beyond now, at most two: [until_ms, group_id, ...]. Foreign text is no group.
function reader.groups(text, now)
  local groups, at = {}, 1
  while text and at <= #text do
    local ends, length, from = string.match(text, '^(%d+) (%d+) ()', at)
    if not ends then
      break
    end
    if value.is_running(tonumber(ends), now, reader.LONGEST_MS) then
      groups[#groups + 1] = tonumber(ends)
      groups[#groups + 1] = string.sub(text, from, from + length - 1)
    end
    at = from + length + 1
  end
  return groups
end

-- A group of a partition as text. string.format would end the id at a zero byte.
function reader.noted(group_id, ends)
  return string.format('%d %d ', ends, #group_id) .. group_id .. ' '
end

-- The groups of a partition as text, with a further group, which lasts longest.
function reader.with(groups, group_id, ends)
  local text = reader.noted(group_id, ends)
  for at = 1, #groups, 2 do
    if groups[at + 1] ~= group_id then
      return text .. reader.noted(groups[at + 1], groups[at])
    end
  end
  return text
end

-- The partitions without a group that lasts beyond now; nil if it is not time to look for them. The look comes once in
-- the lifetime of a note, so that each note pays for its own end.
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

korvet.define({
  name = 'reader_note', flags = { 'allow-oom' },
  description = 'note that a client at a host reads for a group',
  keys = 'groups hash topic:partition -> the groups that the reader reads it for',
  args = 'group_id   ttl:int ms   partitions*<=1000 `topic:partition`, ...',
  returns = '0; may be repeated',
}, function(keys, params)
  local key, partitions, now = keys[1], params.partitions, value.now_ms()
  local ends = now + params.ttl
  local ended = reader.ended(key, now)
  local noted = ended and { '', value.integer(ends) } or {}
  local known = #partitions > 0 and redis.call('HMGET', key, unpack(partitions)) or {}
  for at, partition in ipairs(partitions) do
    noted[#noted + 1] = partition
    noted[#noted + 1] = reader.with(reader.groups(known[at], now), params.group_id, ends)
  end
  group.in_batches('HDEL', key, ended or {}) -- first write
  group.in_batches('HSET', key, noted)
  redis.call('PEXPIRE', key, params.ttl)
  return code.NONE
end)

korvet.define({
  name = 'reader_find', flags = { 'no-writes', 'allow-oom' },
  description = 'the groups that a client at a host reads for',
  keys = 'groups hash topic:partition -> the groups that the reader reads it for',
  args = 'partitions*<=1000 `topic:partition`, ...',
  returns = "[group_id, ...], one for each: '' if there is none, or more than one",
}, function(keys, params)
  local partitions = params.partitions
  local now, found = value.now_ms(), {}
  local texts = #partitions > 0 and redis.call('HMGET', keys[1], unpack(partitions)) or {}
  for at in ipairs(partitions) do
    local groups = reader.groups(texts[at], now)
    found[at] = #groups == 2 and groups[2] or ''
  end
  return found
end)
