-- The inlet of a partition of records: a stream `:in` to which Redis users XADD what record_append takes as arguments.
-- Front-ends move what comes there into the log. What cannot be taken goes to `:in:refused` with the reason.

-- Of one call of record_drain, and how many entries are read at once.
recorded.MOST_BYTES = 1048576
recorded.PAGE = 10
-- What is kept of refused entries: about so many, and of each so many of its fields and values.
recorded.MOST_REFUSED = 1000
recorded.MOST_KEPT = 2000

-- record_configure: say what Redis users may add to a partition, and make its inlet
-- KEYS[1] log       stream  records
-- KEYS[2] meta      hash    identity, offsets, epochs, totals
-- KEYS[3] producers hash    producer id -> last batches
-- KEYS[4] in        stream  what Redis users add
-- KEYS[5] refused   stream  what of it was not taken
-- ARGV[1] topic_id   ARGV[2] rules   `max_message_bytes is_log_append_time is_compacted has_schema`, or '' where the
-- topic is not one of records
-- Returns {code}; may be repeated
-- Codes: GONE
function recorded.configure(keys, args)
  if redis.call('HGET', keys[2], 'topic_id') ~= args[1] then
    return { code.GONE }
  end
  if args[2] == '' then
    redis.call('HDEL', keys[2], 'records') -- first write
    return { code.NONE }
  end
  if not recorded.rules(args[2]) and not string.find(args[2], '^%d+ [01] [01] 1$') then
    error('rules are none: ' .. args[2], 0)
  end
  for at = 4, 5 do
    if redis.call('EXISTS', keys[at]) == 0 then
      redis.call('XGROUP', 'CREATE', keys[at], 'korvet', '0', 'MKSTREAM') -- first write
      redis.call('XGROUP', 'DESTROY', keys[at], 'korvet')
    end
  end
  redis.call('HSET', keys[2], 'records', args[2])
  return { code.NONE }
end
redis.register_function{
  function_name = 'korvet_record_configure',
  callback = recorded.configure,
  flags = { 'allow-oom' },
  description = 'say what Redis users may add to a partition, and make its inlet',
}

-- The first entries of an inlet, as many as one call moves, and whether there may be more. The first is read alone, for
-- nothing bounds what Redis users put there.
function recorded.waiting(inlet_key)
  local found, bytes, after = {}, 0, '-'
  while #found < log.STEP and bytes < recorded.MOST_BYTES do
    local count = math.min(#found + 1, recorded.PAGE, log.STEP - #found)
    local page = redis.call('XRANGE', inlet_key, after, '+', 'COUNT', count)
    for _, entry in ipairs(page) do
      found[#found + 1] = entry
      for _, text in ipairs(entry[2]) do
        bytes = bytes + #text
      end
    end
    if #page < count then
      return found, false
    end
    after = '(' .. page[#page][1]
  end
  return found, true
end

-- Keep an entry that is not taken, with the reason.
function recorded.refuse(refused_key, entry, reason)
  local fields = entry[2]
  if #fields > recorded.MOST_KEPT then
    reason = reason .. '; only its first fields are kept'
  end
  redis.call(
    'XADD', refused_key, 'MAXLEN', '~', recorded.MOST_REFUSED, '*', 'reason', reason, 'id', entry[1],
    unpack(fields, 1, math.min(#fields, recorded.MOST_KEPT))
  )
end

-- record_drain: move what Redis users put into a partition's inlet into its log
-- KEYS[1] log       stream  records
-- KEYS[2] meta      hash    identity, offsets, epochs, totals
-- KEYS[3] producers hash    producer id -> last batches
-- KEYS[4] in        stream  what Redis users add
-- KEYS[5] refused   stream  what of it was not taken
-- ARGV[1] topic_id   ARGV[2] run_id
-- Returns {code, taken, refused, more}: how many entries; more is 1 while some may be left: call again. Nothing moves
-- in a topic that is not one of records.
-- Codes: GONE
function recorded.drain(keys, args)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'records')
  if meta[1] ~= args[1] then
    return { code.GONE, 0, 0, 0 }
  elseif not meta[2] then
    return { code.NONE, 0, 0, 0 }
  end
  local rules, no_reason = recorded.rules(meta[2])
  local entries, is_more = recorded.waiting(keys[4])
  redis.call('XLEN', keys[1])
  redis.call('XLEN', keys[5])
  local ids, taken, refused = {}, {}, {}
  for at, entry in ipairs(entries) do
    local problem, fields, size = no_reason, nil, nil
    if rules then
      problem, fields, size = recorded.read(entry[2], rules)
    end
    if problem then
      refused[#refused + 1] = { entry, problem }
    else
      taken[#taken + 1] = { fields = fields, size = size }
    end
    ids[at] = entry[1]
  end
  -- What is refused comes first: a failure there leaves the inlet and the log as they are.
  for _, one in ipairs(refused) do
    recorded.refuse(keys[5], one[1], one[2]) -- first write
  end
  if #taken > 0 then
    recorded.append(keys, args[1], args[2], rules, taken)
  end
  if #ids > 0 then
    redis.call('XDEL', keys[4], unpack(ids))
  end
  return { code.NONE, #taken, #refused, is_more and 1 or 0 }
end
redis.register_function{
  function_name = 'korvet_record_drain',
  callback = recorded.drain,
  description = 'move what Redis users put into a partition\'s inlet into its log',
}
