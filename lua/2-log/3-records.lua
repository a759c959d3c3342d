-- Logs of records: a topic with korvet.storage=record has an entry for each record, so that Redis clients can read it.
--
-- Its fields, in this order: `i`, the index, as for a batch of this one record; `r`, a text
-- `attributes producer_id producer_epoch sequence`, as in the header of its batch, then notes from which a
-- front-end makes the very same record of the entry; `key` and `value`, absent if they are null; `header.<name>` for
-- each header. If the topic's values are JSON, `value.<name>` for each member of the object stands instead of `value`.
-- Korvet's own names have no dot, so no header's or member's field can be taken for one of them.
--
-- An entry's size is the size of a batch with its record alone. The third field says if an entry is a record or
-- a batch; both may be in one stream.
--
-- The field `records` of the meta hash holds the rules for records that Redis users add, a text
-- `max_message_bytes is_log_append_time is_compacted has_schema`. Front-ends keep it as the topic's settings are.
local recorded = {}

-- Of a batch's header, without any records.
recorded.HEADER_BYTES = 61
-- Of one record, because many more arguments do not fit on Lua's stack.
recorded.MOST_HEADERS = 1000
recorded.MOST_MEMBERS = 500
-- Arguments of a record's fields, with those of `r` and `key`.
recorded.MOST_FIELDS = 2 * (recorded.MOST_HEADERS + recorded.MOST_MEMBERS + 2)
recorded.LOG_APPEND_TIME = 8

-- The records in an append's arguments, from an index on: the arguments, and the index at which each record starts. A
-- record is the number of its fields' arguments, its size, its timestamp, and its fields with their values, `r` first.
function log.records_of(args, from, count)
  local starts, at = {}, from
  for number = 1, count do
    local fields = tonumber(args[at])
    if not fields or fields < 2 or fields % 2 ~= 0 or fields > recorded.MOST_FIELDS
      or args[at + 3] ~= 'r' or not tonumber(args[at + 1]) or not tonumber(args[at + 2]) then
      error('record ' .. number .. ' has no fields, size and timestamp', 0)
    end
    starts[number] = at
    at = at + 3 + fields
  end
  if at ~= #args + 1 then
    error('the arguments do not end with record ' .. count, 0)
  end
  return { args = args, starts = starts }
end

-- Write records as entries after an offset. Returns the totals text with them.
function log.write_records(log_key, base, epoch, totals, added)
  local call, format, args = redis.call, string.format, added.args
  local running_max, bytes, batches = string.match(totals, '^(%S+) (%d+) (%d+)$')
  local latest, now_ms = tonumber(running_max), nil
  for number, at in ipairs(added.starts) do
    local size, timestamp = args[at + 1], args[at + 2]
    local reached = timestamp
    if string.byte(reached) == log.MINUS then
      now_ms = now_ms or value.integer(value.now_ms())
      reached = now_ms
    end
    if reached ~= running_max and tonumber(reached) > latest then
      running_max, latest = reached, tonumber(reached)
    end
    bytes = bytes + size
    local index = format('1 %s %s %s %d %d %s 0', size, timestamp, running_max, bytes, batches + number, epoch)
    call('XADD', log_key, format('%d', base + number), 'i', index, unpack(args, at + 3, at + 2 + args[at]))
  end
  return format('%s %d %d', running_max, bytes, batches + #added.starts)
end

korvet.define({
  name = 'log_append_records', by_position = true,
  description = 'append a record batch as an entry for each of its records',
  keys = '@log   @open',
  args = [[
    topic_id   run_id   records   size bytes   max_timestamp ms   crc   producer_id or -1   producer_epoch
    base_sequence   kind `transactional` if the batch belongs to a transaction, else ''
    is_next 1 if an earlier batch of the producer failed or is under way, so that no gap may pass, else ''
    ordinal of the transaction if the coordinator was asked, else ''   transactional_id or ''
    joins 1 as for log_append_transactional, else ''
    record*<=120000 for each the number of its fields' arguments, its size, its timestamp, and the fields
  ]],
  returns = 'the text `code base_offset log_start leader_epoch`, as log_append',
  bound = '10,000 records, for 50 to 60 ms',
  codes = [[GONE, VERIFY, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS: as log_append_transactional]],
  source = 'as log_append_transactional',
}, function(keys, args)
  local added = log.records_of(args, 15, value.number(args[3], 'records'))
  local transaction = nil
  if args[10] == 'transactional' then
    if value.number(args[7], 'producer_id') < 0 then
      return log.not_appended(nil, code.INVALID_PRODUCER_ID_MAPPING, -1, -1, -1)
    end
    transaction = log.transaction_with(args)
  end
  local batch = { unpack(args, 1, 9) }
  batch[11] = args[11] ~= '' or nil
  return log.append_batch(keys, batch, nil, transaction, added)
end)

-- Bytes of a length in a record: a zig-zag varint.
function recorded.length_bytes(length)
  local bytes, left = 1, 2 * length
  while left >= 128 do
    bytes, left = bytes + 1, math.floor(left / 128)
  end
  return bytes
end

-- Bytes of a text with its length before it; a null is its length alone.
function recorded.text_bytes(text)
  return text and recorded.length_bytes(#text) + #text or 1
end

-- Read a record that a Redis user gave as fields and values in turn, by the meta hash's rules. Returns the reason for
-- refusing it; or nil, its fields as an entry has them after `r`, and its size.
function recorded.read(flat, rules)
  if #flat == 0 or #flat % 2 ~= 0 then
    return 'fields and values are not given in pairs'
  end
  local given, headers, headers_bytes = {}, {}, 0
  for at = 1, #flat, 2 do
    local name, text = flat[at], flat[at + 1]
    if name == 'key' or name == 'value' then
      if given[name] then
        return name .. ' is given twice'
      end
      given[name] = text
    elseif string.sub(name, 1, 7) == 'header.' then
      headers[#headers + 1], headers[#headers + 2] = name, text
      headers_bytes = headers_bytes + recorded.text_bytes(string.sub(name, 8)) + recorded.text_bytes(text)
    else
      return 'unknown field ' .. string.sub(name, 1, 100) .. ': a record has key, value and header.<name>'
    end
  end
  if #headers > 2 * recorded.MOST_HEADERS then
    return 'a record has at most ' .. recorded.MOST_HEADERS .. ' headers'
  end
  local inner = 3 + recorded.text_bytes(given.key) + recorded.text_bytes(given.value)
    + recorded.length_bytes(#headers / 2) + headers_bytes
  local size = recorded.HEADER_BYTES + recorded.length_bytes(inner) + inner
  if size > rules.most_bytes then
    return 'the record takes ' .. size .. ' bytes, and max.message.bytes is ' .. rules.most_bytes
  elseif rules.is_compacted and not given.key then
    return 'the topic is compacted, and the record has no key'
  end
  local fields = {}
  for _, name in ipairs({ 'key', 'value' }) do
    if given[name] then
      fields[#fields + 1], fields[#fields + 2] = name, given[name]
    end
  end
  for at = 1, #headers do
    fields[#fields + 1] = headers[at]
  end
  return nil, fields, size
end

-- The rules in the meta hash for records from Redis; or nil and the reason why none are taken.
function recorded.rules(text)
  local most_bytes, is_append_time, is_compacted, has_schema = string.match(text or '', '^(%d+) ([01]) ([01]) ([01])$')
  if not most_bytes then
    return nil, 'not a partition of a topic with korvet.storage=record'
  elseif has_schema == '1' then
    return nil, 'the topic has a korvet.value.schema, which is judged for Kafka clients only'
  end
  return {
    most_bytes = tonumber(most_bytes),
    attributes = is_append_time == '1' and recorded.LOG_APPEND_TIME or 0,
    is_compacted = is_compacted == '1',
  }
end

-- Append records of Redis users. Each is {fields, size}, as recorded.read returns them. Returns the text of log_append.
function recorded.append(keys, topic_id, run_id, rules, given)
  local args, starts, size = {}, {}, 0
  local now_ms, r = value.integer(value.now_ms()), rules.attributes .. ' -1 -1 -1'
  for number, one in ipairs(given) do
    starts[number] = #args + 1
    for _, text in ipairs({ #one.fields + 2, one.size, now_ms, 'r', r }) do
      args[#args + 1] = text
    end
    for _, text in ipairs(one.fields) do
      args[#args + 1] = text
    end
    size = size + one.size
  end
  local batch = { topic_id, run_id, #given, size, now_ms, '0', '-1', '-1', '-1' }
  return log.append_batch(keys, batch, nil, nil, { args = args, starts = starts })
end

-- The first of some commands that the calling Redis user may not run; nil if it may run all. A function has the rights
-- of its caller, and one that stopped half-way would leave a log or a share partition that nobody can use.
function recorded.denied(commands)
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then
      return command[1]
    end
  end
  return nil
end

korvet.define({
  name = 'record_append', by_position = true,
  description = 'append a record, from Redis',
  keys = '@log',
  args = [[
    field*<=2004 `key`, `value` or `header.<name>`, each with its value behind it; a missing key or value is null
  ]],
  returns = [[the record's offset; an error if the topic is not one of records or has a value schema, if the arguments
    are no record that it takes, or if the user has no right to write to these keys]],
}, function(keys, args)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'records')
  local rules, problem = recorded.rules(meta[1] and meta[2])
  local fields, size
  if rules then
    problem, fields, size = recorded.read(args, rules)
  end
  local denied = recorded.denied({
    { 'XADD', keys[1], '*', 'i', '' }, { 'HSET', keys[2], 'end', '' }, { 'SPUBLISH', keys[1], '' },
  })
  if problem or denied then
    return { err = problem and 'ERR ' .. problem or 'NOPERM the user may not call ' .. denied .. ' for this log' }
  end
  -- A server that only Redis users write to may have no front-end that probes it.
  server.ask_replid()
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local reply = recorded.append(keys, meta[1], run_id, rules, { { fields = fields, size = size } })
  return tonumber(string.match(reply, '^0 (%d+)'))
end)
