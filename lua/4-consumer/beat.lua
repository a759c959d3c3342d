-- The heartbeat of a settled member.

-- Begin the session of a member anew if it has all of its target and nothing is due in its group. Returns true if it
-- did. A first deadline that is further ahead than a whole session was set before the clock went back. Almost every
-- heartbeat takes this path, so it reads nothing that grows with the group. It may be late, because it ignores owned
-- partitions.
function consumer.beats(keys, catalog_version, id, epoch, instance_id, session_timeout, is_share)
  local call = redis.call
  local fields = call(
    'HMGET', keys[1], 'generation', 'target_epoch', 'catalog_version', 'next_due',
    consumer.settled_field(is_share, id)
  )
  if fields[1] ~= epoch or fields[2] ~= epoch or fields[3] ~= catalog_version then
    return false
  end
  local now = value.now_ms()
  local left = (tonumber(fields[4]) or 0) - now
  if fields[5] ~= epoch .. ' ' .. session_timeout or left <= 0 or left > tonumber(session_timeout) then
    return false
  end
  if instance_id ~= '' and call('HGET', keys[4], instance_id) ~= id then
    return false
  end
  call('ZADD', keys[3], now + session_timeout, id) -- first write
  return true
end

korvet.define({
  name = 'group_beat', flags = { 'allow-oom' }, by_position = true,
  description = 'show that a settled member lives and has nothing to say',
  keys = '@group',
  args = [[
    catalog_version   member_id   member_epoch   instance_id '' if the request has none   session_timeout ms
    is_share? 1 for a member of a share group
  ]],
  returns = [[1 if there is no news. Returns 0 if the member is not settled, something is due, or the request may be
    refused: call group_consumer_heartbeat, or group_share_heartbeat]],
  source = 'GroupMetadataManager.consumerGroupHeartbeat, shareGroupHeartbeat',
}, function(keys, args)
  return consumer.beats(keys, unpack(args)) and 1 or 0
end)
