-- Who may commit and read offsets of a group of the consumer protocol.
group.USAGE.check_fetch = { 'outages member_id member_epoch' }

-- Whether a member of such a group, in which nothing is due, may commit. It reads nothing that grows with the group.
function consumer.takes_commit(keys, id, epoch, version)
  local fields = redis.call('HMGET', keys[1], 'type', 'next_due', 'settled:' .. id)
  if fields[1] ~= 'consumer' or value.now_ms() >= (tonumber(fields[2]) or 0) then
    return false
  elseif fields[3] and string.match(fields[3], '^%-?%d+') == epoch then
    return tonumber(version) >= 9
  end
  local record = redis.call('HGET', keys[2], id)
  if not record then
    return false
  end
  local _, member_epoch, _, _, is_classic = struct.unpack(consumer.HEAD, record)
  return member_epoch == tonumber(epoch) and (is_classic == 1 or tonumber(version) >= 9)
end

-- Why an epoch is not the member's. Source: ConsumerGroup.validateMemberEpoch
function consumer.stale_epoch(member, epoch)
  if epoch == member.epoch then
    return nil
  end
  return member.classic and code.ILLEGAL_GENERATION or code.STALE_MEMBER_EPOCH
end

-- Why a commit is refused. Source: ConsumerGroup.validateOffsetCommit
function consumer.commit_refusal(g, id, _, epoch, version)
  if epoch < 0 and group.is(g, 'Empty') then
    return nil
  end
  local member = group.member(g, id)
  if not member then
    return code.UNKNOWN_MEMBER_ID
  elseif not member.classic and version < 9 then
    return code.UNSUPPORTED_VERSION
  end
  return consumer.stale_epoch(member, epoch)
end

-- Why a commit in a transaction is refused. Producers of before KIP-447 name neither member nor epoch.
-- Source: ConsumerGroup.validateOffsetCommit, OffsetMetadataManager.validateTransactionalOffsetCommit
function consumer.txn_commit_refusal(g, id, instance_id, epoch)
  if epoch < 0 and (group.is(g, 'Empty') or epoch == -1 and id == '' and instance_id == '') then
    return nil
  end
  local member = group.member(g, id)
  if not member then
    return code.UNKNOWN_MEMBER_ID
  end
  return epoch ~= member.epoch and code.ILLEGAL_GENERATION or nil
end

-- The topics that the members subscribe to, as a set: those that they name, and with a regular expression those of the
-- last target. Source: ConsumerGroup.isSubscribedToTopic
function consumer.subscribed(g)
  local topics, has_regex = {}, false
  for _, id in ipairs(group.member_ids(g)) do
    local member = g.members[id]
    has_regex = has_regex or member.regex ~= ''
    for _, name in ipairs(member.names) do
      topics[name] = true
    end
  end
  if has_regex then
    for _, name in pairs(consumer.topic_names(g)) do
      topics[name] = true
    end
  end
  return topics
end

-- group_check_fetch: whether a member may read offsets of its group in an epoch
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] outages: `served_until from-to ...` or ''
-- ARGV[2] member_id or ''   ARGV[3] member_epoch or -1
-- Returns code; NONE for a group that does not speak the consumer protocol
-- Codes: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION (of a classic member)
-- Source: ConsumerGroup.validateOffsetFetch
function consumer.check_fetch(keys, args)
  group.expect(keys, args, 'check_fetch', 3)
  local id, epoch = args[2], value.number(args[3], 'member_epoch')
  local g = group.open(keys)
  group.advance(g, args[1])
  if not group.is_consumer(g) or id == '' and epoch < 0 then
    return code.NONE
  end
  local member = group.member(g, id)
  return not member and code.UNKNOWN_MEMBER_ID or consumer.stale_epoch(member, epoch) or code.NONE
end
redis.register_function{
  function_name = 'korvet_group_check_fetch',
  callback = consumer.check_fetch,
  flags = { 'no-writes', 'allow-oom' },
  description = 'whether a member may read offsets of its group in an epoch',
}
