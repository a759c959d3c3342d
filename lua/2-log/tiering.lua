korvet.define({
  name = 'tier_lease', flags = { 'allow-oom' },
  description = "take, keep or give back the lease of a partition's tierer, who seals its batches",
  keys = 'meta hash identity, offsets, epochs, totals',
  args = 'topic_id   token of the tierer   lease_ms:int 0 gives it back',
  returns = '{code, status}; status: ready | busy (another tierer has it); may be repeated',
  codes = 'GONE',
  source = 'RemoteLogManager.onLeadershipChange',
  notes = [[The lease, a field `tiering` of the meta hash, only saves work: tier_add takes one of two segments that
    begin at the same offset.]],
}, function(keys, params)
  local meta = redis.call('HMGET', keys[1], 'topic_id', 'tiering')
  if meta[1] ~= params.topic_id then
    return { code.GONE, '' }
  end
  local now_ms = value.now_ms()
  local token, end_ms, lasts_ms = string.match(meta[2] or '', '^(%S+) (%d+) (%d+)$')
  if token and token ~= params.token and value.is_running(tonumber(end_ms), now_ms, tonumber(lasts_ms)) then
    return { code.NONE, 'busy' }
  elseif params.lease_ms > 0 then
    local lease = params.token .. ' ' .. value.integer(now_ms + params.lease_ms) .. ' ' .. params.lease_ms
    redis.call('HSET', keys[1], 'tiering', lease) -- first write
  elseif token == params.token then
    redis.call('HDEL', keys[1], 'tiering')
  end
  return { code.NONE, 'ready' }
end)
