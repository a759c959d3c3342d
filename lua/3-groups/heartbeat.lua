-- True if a group that no client leads may have other topics than it was assigned. A leader would look at them itself.
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

korvet.define({
  name = 'group_heartbeat', flags = { 'allow-oom' }, by_position = true,
  description = 'show that a member lives',
  keys = '@group',
  args = [[
    outages read if something is due   member_id   instance_id or ''   generation
    catalog_version? of the front-end's catalog: on another one a group without a leader rebalances
  ]],
  returns = [[code; RETRY if a group of the consumer protocol has the target of another catalog: bring it up to date and
    call again]],
  codes = 'UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, RETRY',
  source = 'GroupMetadataManager.classicGroupHeartbeatToClassicGroup',
}, function(keys, args)
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
end)
