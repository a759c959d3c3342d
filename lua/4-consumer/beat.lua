-- The heartbeat of a settled member.

-- Begin the session of a member anew if it has all of its target and nothing is due in its group. Returns whether this
-- is so. A first deadline that is further ahead than a whole session was set before the clock went back. Almost every
-- heartbeat takes this path, so it reads nothing that grows with the group. It may be late, because it ignores owned
-- partitions.
function consumer.beats(keys, catalog_version, id, epoch, instance_id, session_timeout)
  local call = redis.call
  local fields = call(
    'HMGET', keys[1], 'generation', 'target_epoch', 'catalog_version', 'next_due', 'settled:' .. id
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

-- group_beat: show that a settled member lives and has nothing to say
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] catalog_version   ARGV[2] member_id   ARGV[3] member_epoch
-- ARGV[4] instance_id, '' if the request has none   ARGV[5] session_timeout ms
-- Returns 1 if there is no news. Returns 0 if the member is not settled, something is due, or the request may be
-- refused: call group_consume
-- Source: GroupMetadataManager.consumerGroupHeartbeat
function consumer.beat(keys, args)
  group.expect(keys, args, 'group_beat', 5, 5)
  return consumer.beats(keys, unpack(args)) and 1 or 0
end
redis.register_function{
  function_name = 'korvet_group_beat',
  callback = consumer.beat,
  flags = { 'allow-oom' },
  description = 'show that a settled member lives and has nothing to say',
}
