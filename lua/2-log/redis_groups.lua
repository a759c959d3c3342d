-- Redis groups on a partition's stream: the positions of Kafka groups, as Redis clients see them.
--
-- A position N is the last-delivered-id `N-0`: every batch wholly below N is delivered. ENTRIESREAD is the number of
-- batches ever appended up to there, because Redis counts all entries that it ever added. So XINFO GROUPS knows the lag
-- in entries at any position, also in a trimmed stream.

-- Redis groups that one call describes, at most.
log.MOST_DESCRIBED = 500

-- From an entry's index: its size, running_bytes, running_batches; numbers.
function log.running(entry)
  local size, bytes, batches = string.match(entry[2][2], '^%d+ (%d+) %-?%d+ %-?%d+ (%d+) (%d+) ')
  if entry[2][1] ~= 'i' or not size then
    error('entry ' .. entry[1] .. ' is not one of korvet\'s', 0)
  end
  return tonumber(size), tonumber(bytes), tonumber(batches)
end

-- How many batches were appended before the first one that holds an offset at or above this one. A table keeps the
-- answers, because many groups stand at one offset.
function log.batches_below_once(log_key, offset, totals, found)
  found[offset] = found[offset] or log.batches_below(log_key, offset, totals)
  return found[offset]
end

-- As log.batches_below_once, without a table.
function log.batches_below(log_key, offset, totals)
  local entry = redis.call('XREVRANGE', log_key, offset .. '-0', '-', 'COUNT', 1)[1]
  if entry then
    return (select(3, log.running(entry)))
  end
  local first = redis.call('XRANGE', log_key, '-', '+', 'COUNT', 1)[1]
  if first then
    return select(3, log.running(first)) - 1
  end
  return tonumber(string.match(totals, '(%d+)$'))
end

-- The error of a command, or nil.
function log.problem_of(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err or nil
end

-- Make or move a Redis group. An error means that nothing was written.
function log.set_group(log_key, group_id, offset, totals, is_moved)
  local id, read = offset .. '-0', value.integer(log.batches_below(log_key, offset, totals))
  local problem = is_moved and log.problem_of('XGROUP', 'SETID', log_key, group_id, id, 'ENTRIESREAD', read)
  if problem and string.find(problem, 'NOGROUP', 1, true) or not is_moved then
    problem = log.problem_of('XGROUP', 'CREATE', log_key, group_id, id, 'ENTRIESREAD', read) -- first write
  end
  if problem and not string.find(problem, 'BUSYGROUP', 1, true) then
    error(problem, 0)
  end
end

korvet.define({
  name = 'log_attach', flags = { 'allow-oom' },
  description = 'make the Redis group of a Kafka group at its position, or move it there',
  keys = '@log',
  args = [[
    topic_id   group_id   offset
    mode:keep|move keep: an existing Redis group stays where it is; move: it moves to this offset, whatever the log
      holds
  ]],
  returns = '{code}; may be repeated',
  codes = 'GONE, OFFSET_OUT_OF_RANGE (with keep only: a reader of that offset is sent elsewhere)',
}, function(keys, params)
  local log_key, offset = keys[1], params.offset
  if not string.find(offset, '^%d+$') then
    error('offset is not a number: ' .. offset, 0)
  end
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'start', 'end', 'totals')
  if meta[1] ~= params.topic_id or redis.call('EXISTS', log_key) == 0 then
    return { code.GONE }
  end
  local position = tonumber(offset)
  if params.mode == 'keep' and (position < tonumber(meta[2]) or position > tonumber(meta[3])) then
    return { code.OFFSET_OUT_OF_RANGE }
  end
  log.set_group(log_key, params.group_id, offset, meta[4], params.mode == 'move')
  return { code.NONE }
end)

korvet.define({
  name = 'log_detach', flags = { 'allow-oom' },
  description = 'destroy the Redis group of a Kafka group',
  keys = '@log',
  args = 'topic_id   group_id',
  returns = '{code}; 0 also if there is no such Redis group; may be repeated',
  codes = "GONE (the topic's Redis groups are gone with it)",
}, function(keys, params)
  if redis.call('HGET', keys[2], 'topic_id') ~= params.topic_id or redis.call('EXISTS', keys[1]) == 0 then
    return { code.GONE }
  end
  redis.call('XGROUP', 'DESTROY', keys[1], params.group_id) -- first write
  return { code.NONE }
end)

-- The Redis groups of a stream as [[name, ..., position, ..., lag_records, ..., lag_batches, ...], ...]; empty if there
-- are more than log.MOST_DESCRIBED.
function log.described_groups(log_key, count, log_start, log_end, totals)
  local batches = tonumber(string.match(totals, '(%d+)$'))
  local described, found_below = {}, {}
  if count > log.MOST_DESCRIBED then
    return described
  end
  for at, flat in ipairs(redis.call('XINFO', 'GROUPS', log_key)) do
    local found = value.pairs(flat)
    local position = string.match(found['last-delivered-id'], '^%d+')
    described[at] = {
      'name', found.name, 'position', position,
      'lag_records', math.max(0, log_end - math.max(tonumber(position), log_start)),
      'lag_batches', batches - log.batches_below_once(log_key, position, totals, found_below),
    }
  end
  return described
end

korvet.define({
  name = 'log_describe', flags = { 'no-writes', 'allow-oom' },
  description = "a partition's offsets and size, and the positions of its Redis groups",
  keys = 'log stream record batches   meta hash identity, offsets, epochs, totals',
  args = 'without_groups? given to leave out the groups',
  returns = [=[{code}, or {0, topic_id, _, start, _, end, _, epoch, _, batches, _, bytes, _, groups, [[name, _,
    position, _, lag_records, _, lag_batches, _], ...], groups_count, _}: each name is followed by its value, the
    position is a text; groups is empty if there are more than it may list]=],
  bound = '500 groups',
  codes = 'GONE',
}, function(keys, params)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'start', 'end', 'epoch', 'totals')
  if not meta[1] or redis.call('EXISTS', keys[1]) == 0 then
    return { code.GONE }
  end
  local log_start, log_end = tonumber(meta[2]), tonumber(meta[3])
  local batches, bytes = 0, 0
  local first = redis.call('XRANGE', keys[1], '-', '+', 'COUNT', 1)[1]
  if first then
    local size, bytes_to_first = log.running(first)
    batches = redis.call('XLEN', keys[1])
    bytes = string.match(meta[5], '(%d+) %d+$') - bytes_to_first + size
  end
  local count, groups = 0, {}
  if not params.without_groups then
    count = value.pairs(redis.call('XINFO', 'STREAM', keys[1])).groups
    groups = log.described_groups(keys[1], count, log_start, log_end, meta[5])
  end
  return {
    code.NONE, 'topic_id', meta[1], 'start', log_start, 'end', log_end, 'epoch', tonumber(meta[4]),
    'batches', batches, 'bytes', bytes, 'groups', groups, 'groups_count', count,
  }
end)
