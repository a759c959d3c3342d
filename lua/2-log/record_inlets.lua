-- The inlet of a partition of records: a stream `:in` to which Redis users XADD the arguments of record_append.
-- Front-ends move its entries into the log. An entry that is no record goes to `:in:refused` with the reason.

-- The stream of refused entries keeps about MOST_REFUSED of them, each cut to a number of fields, values and bytes.
recorded.MOST_REFUSED = 1000
recorded.MOST_KEPT = 2000
recorded.MOST_KEPT_BYTES = 16384

korvet.define({
  name = 'record_configure', flags = { 'allow-oom' },
  description = 'set the rules for records that Redis users add to a partition, and make its inlet',
  keys = '@log   in stream what Redis users add   refused stream entries that were refused',
  args = [[
    topic_id
    rules `max_message_bytes is_log_append_time is_compacted has_schema`, or '' if the topic is not one of records
  ]],
  returns = '{code}; may be repeated',
  codes = 'GONE',
}, function(keys, params)
  if redis.call('HGET', keys[2], 'topic_id') ~= params.topic_id then
    return { code.GONE }
  end
  if params.rules == '' then
    redis.call('HDEL', keys[2], 'records') -- first write
    return { code.NONE }
  end
  if not recorded.rules(params.rules) and not string.find(params.rules, '^%d+ [01] [01] 1$') then
    error('rules are not `max_message_bytes is_log_append_time is_compacted has_schema`: ' .. params.rules, 0)
  end
  for at = 4, 5 do
    if redis.call('EXISTS', keys[at]) == 0 then
      redis.call('XGROUP', 'CREATE', keys[at], 'korvet', '0', 'MKSTREAM') -- first write
      redis.call('XGROUP', 'DESTROY', keys[at], 'korvet')
    end
  end
  redis.call('HSET', keys[2], 'records', params.rules)
  return { code.NONE }
end)

-- The part of an entry's fields and values that is kept, and true if some are left out.
function recorded.kept(fields)
  local kept, left, is_cut = {}, recorded.MOST_KEPT_BYTES, #fields > recorded.MOST_KEPT
  for at = 1, math.min(#fields, recorded.MOST_KEPT) do
    if left == 0 and at % 2 == 1 then
      return kept, true
    end
    kept[at] = string.sub(fields[at], 1, left)
    left = left - #kept[at]
    is_cut = is_cut or #kept[at] < #fields[at]
  end
  return kept, is_cut
end

-- Keep a refused entry, with the reason.
function recorded.refuse(refused_key, entry, reason)
  local kept, is_cut = recorded.kept(entry[2])
  if is_cut then
    reason = reason .. '; only the first of it is kept'
  end
  redis.call(
    'XADD', refused_key, 'MAXLEN', '~', recorded.MOST_REFUSED, '*', 'reason', reason, 'id', entry[1], unpack(kept)
  )
end

korvet.define({
  name = 'record_drain',
  description = "move the entries of a partition's inlet into its log",
  keys = '@log   in stream what Redis users add   refused stream entries that were refused',
  args = 'topic_id   run_id',
  returns = [[{code, taken, refused, more}: how many entries; more is 1 while some may be left: call again. Nothing
    moves if the topic is not one of records]],
  bound = '100 entries a call; about 1 MiB',
  codes = 'GONE',
}, function(keys, params)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'records')
  if meta[1] ~= params.topic_id then
    return { code.GONE, 0, 0, 0 }
  elseif not meta[2] then
    return { code.NONE, 0, 0, 0 }
  end
  local rules, no_reason = recorded.rules(meta[2])
  local entries, is_more = log.page(keys[4], '-', '+')
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
  -- Refused entries come first: a failure there leaves the inlet and the log as they are.
  for _, one in ipairs(refused) do
    recorded.refuse(keys[5], one[1], one[2]) -- first write
  end
  if #taken > 0 then
    recorded.append(keys, params.topic_id, params.run_id, rules, taken)
  end
  if #ids > 0 then
    redis.call('XDEL', keys[4], unpack(ids))
  end
  return { code.NONE, #taken, #refused, is_more and 1 or 0 }
end)
