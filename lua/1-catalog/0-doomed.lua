-- Objects of the tier that nobody may need any more. The zset `doomed` of the catalog has `topic_id partition path` for
-- each, by the ms from which on it may be deleted, unless that partition lists it by then. A tierer enters an object
-- before it uploads it, so no crash leaves one that nobody knows.
korvet.define({
  name = 'tier_doom', flags = { 'allow-oom' },
  description = 'enter objects that may be deleted some time from now, or take them out',
  keys = 'doomed zset `topic_id partition path` -> ms from which on it may be deleted',
  args = 'after_ms:int -1 takes them out   texts+<=512',
  returns = '{code}; may be repeated',
  bound = '512 texts a call',
}, function(keys, params)
  local from_ms = value.integer(value.now_ms() + params.after_ms)
  for _, text in ipairs(params.texts) do
    if params.after_ms >= 0 then
      calls.call('ZADD', keys[1], from_ms, text) -- first write
    else
      calls.call('ZREM', keys[1], text)
    end
  end
  return { code.NONE }
end)

korvet.define({
  name = 'tier_doomed', flags = { 'no-writes', 'allow-oom' },
  description = 'list objects that may be deleted now, unless a partition lists them',
  keys = 'doomed zset `topic_id partition path` -> ms from which on it may be deleted',
  args = 'most:int at most 512',
  returns = '{code, [text, ...]}',
  bound = '512 texts a call',
}, function(keys, params)
  local most = math.max(math.min(params.most, 512), 1)
  return { code.NONE, calls.call('ZRANGEBYSCORE', keys[1], '-inf', value.integer(value.now_ms()), 'LIMIT', 0, most) }
end)
