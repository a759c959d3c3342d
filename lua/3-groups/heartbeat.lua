-- Whether a group that no client leads may have other topics than it was assigned. A leader would look at them itself.
function group.has_other_topics(known, told)
  return known and told and known ~= told
end

-- Begin the session of a member anew if nothing is due in its group. Almost every heartbeat and commit takes this path,
-- so it reads nothing that grows with the group. A first deadline that is further ahead than a whole session was set
-- before the clock went back.
-- Returns the state; nil if the whole group has to be looked at.
function group.beat(keys, id, instance_id, generation, catalog_version)
  local call = redis.call
  local fields = call('HMGET', keys[1], 'state', 'generation', 'next_due', 'type', 'catalog_version')
  local state, is_other, now = fields[1], fields[4] or fields[2] ~= generation, value.now_ms()
  if group.has_other_topics(fields[5], catalog_version) then
    return nil
  end
  if not state or state == 'Empty' or is_other or now >= (tonumber(fields[3]) or 0) then
    return nil
  end
  if instance_id ~= '' and call('HGET', keys[4], instance_id) ~= id then
    return nil
  end
  local record = call('HGET', keys[2], id)
  local timeout = record and group.session_timeout(record)
  if not record or fields[3] - now > timeout then
    return nil
  end
  call('ZADD', keys[3], now + timeout, id) -- first write
  return state
end

-- group_heartbeat: show that a member lives
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] outages: `served_until from-to ...` or '', read if something is due
-- ARGV[2] member_id   ARGV[3] instance_id or ''   ARGV[4] generation
-- ARGV[5] catalog_version (optional), of the front-end's catalog: on another one a group without a leader rebalances
-- Returns code; RETRY if a group of the consumer protocol has the target of another catalog: bring it up to date and
-- call again
-- Codes: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, RETRY
-- Source: GroupMetadataManager.classicGroupHeartbeatToClassicGroup
function group.heartbeat(keys, args)
  group.expect(keys, args, 'group_heartbeat', 4, 5)
  local id, instance_id = args[2], args[3]
  local state = group.beat(keys, id, instance_id, args[4], args[5])
  if not state then
    local g = group.open(keys)
    group.advance(g, args[1])
    if group.is_consumer(g) then
      return group.consumer.heartbeat(g, id, instance_id, value.number(args[4], 'generation'), args[5])
    end
    local refusal = group.refusal(g, id, instance_id)
    if not refusal and value.number(args[4], 'generation') ~= g.fields.generation then
      refusal = code.ILLEGAL_GENERATION
    end
    if not refusal then
      group.renew(g, id, group.member(g, id).session_timeout)
      if group.has_other_topics(g.fields.catalog_version, args[5]) then
        group.prepare(g)
      end
    end
    group.save(g)
    if refusal then
      return refusal
    end
    state = g.fields.state
  end
  return state == 'PreparingRebalance' and code.REBALANCE_IN_PROGRESS or code.NONE
end
redis.register_function{
  function_name = 'korvet_group_heartbeat',
  callback = group.heartbeat,
  flags = { 'allow-oom' },
  description = 'show that a member lives',
}
