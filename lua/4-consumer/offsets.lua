-- The rights of members to commit and read offsets of a group of the consumer protocol.

-- True if a member may commit to such a group with nothing due. Reads nothing that grows with the group.
function consumer.takes_commit(keys, id, epoch, version)
  local fields = redis.call('HMGET', keys[1], 'type', 'next_due', 'settled:' .. id)
  if fields[1] ~= 'consumer' or value.now_ms() >= (tonumber(fields[2]) or 0) then
    return false
  end
  epoch, version = tonumber(epoch), tonumber(version)
  if fields[3] and tonumber(string.match(fields[3], '^%-?%d+')) == epoch then
    return version >= 9
  end
  local record = redis.call('HGET', keys[2], id)
  if not record then
    return false
  end
  local _, member_epoch, _, _, is_classic = struct.unpack(consumer.HEAD, record)
  return member_epoch == epoch and (is_classic == 1 or version >= 9)
end

-- The code if an epoch is not the member's, else nil. Source: ConsumerGroup.validateMemberEpoch
function consumer.stale_epoch(member, epoch)
  if epoch == member.epoch then
    return nil
  end
  return member.classic and code.ILLEGAL_GENERATION or code.STALE_MEMBER_EPOCH
end

-- The code if a commit is refused, else nil. Source: ConsumerGroup.validateOffsetCommit
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

-- The code if a commit in a transaction is refused. Producers before KIP-447 name neither member nor epoch.
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

-- The names of all members that a deletion of offsets looks at; equal subscriptions count once.
consumer.MOST_WANTED = 200000

-- The topics that the members subscribe to, as a set: the ones that they name, and with a regular expression all topics
-- of the last target; nil if they name too many. Source: ConsumerGroup.isSubscribedToTopic
function consumer.subscribed(g)
  local topics, has_regex, last, left = {}, false, nil, consumer.MOST_WANTED
  group.each(g, function(_, record, member)
    if left < 0 then
      return
    end
    member = member or consumer.unpacked(record)
    has_regex = has_regex or member.regex ~= ''
    local names = member.names ~= last and member.names or {}
    last, left = member.names, left - #names
    for _, name in ipairs(left >= 0 and names or {}) do
      topics[name] = true
    end
  end)
  if left < 0 then
    return nil
  end
  if has_regex then
    for _, name in pairs(consumer.topic_names(g)) do
      topics[name] = true
    end
  end
  return topics
end

korvet.define({
  name = 'group_check_fetch', flags = { 'no-writes', 'allow-oom' },
  description = 'whether a member may read offsets of its group in an epoch',
  keys = '@group',
  args = "outages   member_id or ''   member_epoch:int or -1",
  returns = 'code; NONE for a group that does not speak the consumer protocol',
  codes = 'UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION (of a classic member)',
  source = 'ConsumerGroup.validateOffsetFetch',
}, function(keys, params)
  local id, epoch = params.member_id, params.member_epoch
  local g = group.open(keys)
  group.advance(g, params.outages)
  if not group.is_consumer(g) or id == '' and epoch < 0 then
    return code.NONE
  end
  local member = group.member(g, id)
  return not member and code.UNKNOWN_MEMBER_ID or consumer.stale_epoch(member, epoch) or code.NONE
end)
