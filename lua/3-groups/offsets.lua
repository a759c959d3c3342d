-- Committed offsets: a hash, `topic:partition` -> its position `offset leader_epoch topic_id metadata`. The leader
-- epoch is -1 if the client named none. With the id of a former topic, nothing is committed.

-- The code if a commit is refused, else nil. Source: OffsetMetadataManager.validateOffsetCommit,
-- ClassicGroup.validateOffsetCommit
function group.commit_refusal(g, id, instance_id, generation, version)
  if not group.exists(g) then
    return generation >= 0 and (version >= 9 and code.GROUP_ID_NOT_FOUND or code.ILLEGAL_GENERATION) or nil
  elseif generation < 0 and group.is(g, 'Empty') then
    return nil
  elseif generation < 0 and id == '' and instance_id == '' then
    return code.UNKNOWN_MEMBER_ID
  end
  local refusal = group.refusal(g, id, instance_id)
  if refusal then
    return refusal
  elseif generation ~= g.fields.generation then
    return code.ILLEGAL_GENERATION
  end
  return group.is(g, 'CompletingRebalance') and code.REBALANCE_IN_PROGRESS or nil
end

-- True if a commit without a member may go straight to a group with nothing due. The whole group has to be
-- looked at now and then, to move its expiry, and if it has no offsets yet.
function group.takes_any_commit(keys, generation, retention)
  local fields = redis.call('HMGET', keys[1], 'state', 'expires_at', 'next_due')
  if fields[1] ~= 'Empty' or not fields[2] or tonumber(generation) >= 0 then
    return false
  end
  local now, expires_at = value.now_ms(), tonumber(fields[2])
  local is_fresh = expires_at > now and now + retention - expires_at <= retention / 1000
  return is_fresh and now < (tonumber(fields[3]) or math.huge) and redis.call('EXISTS', keys[5]) == 1
end

-- A commit that has to look at the whole group, with the arguments of group_commit.
function group.commit_slowly(keys, args)
  local outages, id, locator, member_id, instance_id, generation, version, retention = unpack(args, 1, 8)
  generation, version = value.number(generation, 'generation'), value.number(version, 'version')
  retention = value.number(retention, 'retention')
  local g = group.open(keys)
  group.advance(g, outages)
  local refuses = group.is_consumer(g) and group.consumer.commit_refusal or group.commit_refusal
  local refusal = group.is_share(g) and code.GROUP_ID_NOT_FOUND
    or refuses(g, member_id, instance_id, generation, version)
  if not refusal then
    local member = group.member(g, member_id)
    if member and not group.is_consumer(g) then
      group.renew(g, member_id, member.session_timeout)
    elseif group.is(g, 'Empty') then
      group.set(g, 'retention', retention)
      group.set(g, 'expires_at', g.now + retention)
    elseif not group.exists(g) and #args > 8 then
      if id == '' then
        return code.UNINDEXED
      end
      group.found(g, id, locator, retention)
    end
  end
  group.save(g, not refusal and args, 9)
  return refusal or code.NONE
end

korvet.define({
  name = 'group_commit', flags = { 'allow-oom' }, by_position = true,
  description = "commit offsets, as a member or as a consumer without a group's protocol",
  keys = '@group',
  args = [[
    outages   id of a new group, '' while it is not in the index   locator   member_id or ''   instance_id or ''
    generation or -1   version of the OffsetCommit   retention ms
    offsets*2<=2000 `topic:partition`, `offset leader_epoch topic_id metadata`, ...
  ]],
  returns = 'code',
  codes = [[LATE, UNINDEXED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND,
    REBALANCE_IN_PROGRESS; of a group of the consumer protocol STALE_MEMBER_EPOCH, UNSUPPORTED_VERSION]],
  source = 'OffsetMetadataManager.commitOffset',
}, function(keys, args)
  local outages, _, _, member_id, instance_id, generation, version, retention = unpack(args, 1, 8)
  if group.is_late(outages) then
    return code.LATE
  end
  local state
  if member_id ~= '' then
    state = group.beat(keys, member_id, instance_id, generation)
  elseif group.takes_any_commit(keys, generation, retention) then
    state = 'Empty'
  end
  if not state and not group.consumer.takes_commit(keys, member_id, generation, version) then
    return group.commit_slowly(keys, args)
  elseif state == 'CompletingRebalance' then
    return code.REBALANCE_IN_PROGRESS
  end
  group.in_batches('HSET', keys[5], args, 9)
  return code.NONE
end)

-- True if a group has expired by now, and so has no offsets.
function group.is_gone(group_key)
  local fields = redis.call('HMGET', group_key, 'expires_at', 'transactions')
  return group.has_expired(fields[1], fields[2], value.now_ms())
end

-- Offsets, [partition, position, ...]. If the key of open transactions is given, `unstable` replaces the positions that
-- these may change.
function group.with_unstable(flat, pending_key)
  local partitions = {}
  for at = 1, pending_key and #flat or 0, 2 do
    partitions[#partitions + 1] = flat[at]
  end
  local unstable = pending_key and group.unstable_of(pending_key, partitions) or {}
  for at = 1, #flat, 2 do
    flat[at + 1] = unstable[flat[at]] and 'unstable' or flat[at + 1]
  end
  return flat
end

korvet.define({
  name = 'group_fetch', flags = { 'no-writes', 'allow-oom' },
  description = 'read committed offsets',
  keys = '@group   pending? hash producer id -> its transactions and the offsets of the open one',
  args = 'partitions*<=1000 `topic:partition`, ...; none for all of a group that has no more than the bound',
  returns = [[[`topic:partition`, `offset leader_epoch topic_id metadata` or '', ...]; `unstable` instead of an offset
    that an open transaction may change, if the key pending is given]],
  bound = 'group_offsets reads all of a group that has more',
  source = 'OffsetMetadataManager.fetchOffsets',
}, function(keys, params)
  local partitions = params.partitions
  local is_gone = group.is_gone(keys[1])
  if #partitions == 0 then
    local size = is_gone and 0 or redis.call('HLEN', keys[5])
    if size > group.BATCH then
      error(value.integer(size) .. ' committed offsets: korvet_group_offsets tells them in steps', 0)
    end
    return group.with_unstable(size > 0 and redis.call('HGETALL', keys[5]) or {}, keys[6])
  end
  local positions, found = is_gone and {} or redis.call('HMGET', keys[5], unpack(partitions)), {}
  for at, partition in ipairs(partitions) do
    found[2 * at - 1] = partition
    found[2 * at] = positions[at] or ''
  end
  return group.with_unstable(found, keys[6])
end)

korvet.define({
  name = 'group_offsets', flags = { 'no-writes', 'allow-oom' },
  description = 'read all committed offsets, some with each call',
  keys = '@group   pending? hash producer id -> its transactions and the offsets of the open one',
  args = 'cursor 0 at first',
  returns = [[{cursor, [`topic:partition`, position, ...]}, positions as those of group_fetch; call again with the
    cursor until it is '0'. An offset that is there all the time comes once or twice]],
  bound = '1000 offsets a call, more or less',
  source = 'OffsetMetadataManager.fetchAllOffsets',
}, function(keys, params)
  local cursor = params.cursor
  if group.is_gone(keys[1]) then
    return { '0', {} }
  end
  local scanned = redis.call('HSCAN', keys[5], cursor, 'COUNT', group.BATCH)
  return { scanned[1], group.with_unstable(scanned[2], keys[6]) }
end)

-- The topics that the members subscribe to, as a set; nil if they are not known, or too many to be read.
-- Source: ClassicGroup.computeSubscribedTopics
function group.subscribed(g)
  local topics, memory, last = {}, { left = group.MOST_SUBSCRIBED }, nil
  if not group.is(g, 'Empty') and not g.fields.protocol then
    return nil
  end
  for _, id in ipairs(group.member_ids(g)) do
    local named = group.consumer.remembered(memory, group.names_at, group.metadata(g, g.members[id]), 3)
    if not named then
      return nil
    end
    for _, name in ipairs(named ~= last and named or {}) do
      topics[name] = true
    end
    last = named
  end
  return topics
end

korvet.define({
  name = 'group_offset_delete', flags = { 'allow-oom' },
  description = 'forget committed offsets of topics that no member subscribes to',
  keys = '@group   pending? hash producer id -> its transactions and the offsets of the open one',
  args = 'outages   partitions*<=1000 `topic:partition`, ...',
  returns = [[{code, [code, ...]}, one for each partition; if the key pending is given, open transactions forget them as
    well]],
  bound = [[The call reads all members, for none of them may subscribe in between. If their subscriptions have more than
    128 KiB, every topic counts as subscribed to]],
  codes = 'LATE, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP; of a partition GROUP_SUBSCRIBED_TO_TOPIC',
  source = 'OffsetMetadataManager.deleteOffsets, ClassicGroup.validateOffsetDelete',
}, function(keys, params)
  if #params.partitions > 0 and group.is_late(params.outages) then
    return { code.LATE, {} }
  end
  local g = group.open_beside(keys)
  group.advance(g, params.outages)
  local outcome, codes, removed = code.NONE, {}, {}
  if not group.exists(g) or group.is_share(g) then
    outcome = code.GROUP_ID_NOT_FOUND
  elseif not group.is(g, 'Empty') and not group.is_consumer(g) and g.fields.protocol_type ~= 'consumer' then
    outcome = code.NON_EMPTY_GROUP
  else
    local topics = group.is_consumer(g) and group.consumer.subscribed(g) or group.subscribed(g)
    for at, partition in ipairs(params.partitions) do
      if not topics or topics[string.match(partition, '^(.*):%d+$')] then
        codes[at] = code.GROUP_SUBSCRIBED_TO_TOPIC
      else
        codes[at] = code.NONE
        removed[#removed + 1] = partition
      end
    end
  end
  if keys[6] and #removed > 0 then
    group.drop_held(keys[6], removed) -- first write
  end
  group.save(g)
  group.in_batches('HDEL', keys[5], removed)
  return { outcome, codes }
end)

korvet.define({
  name = 'group_offset_forget', flags = { 'allow-oom' },
  description = 'forget committed offsets of topics that are gone',
  keys = '@group',
  args = 'partitions*2<=1000 `topic:partition`, topic_id, ... An offset of another topic of the same name stays.',
  returns = 'how many were forgotten',
  source = 'OffsetMetadataManager.onPartitionsDeleted',
}, function(keys, params)
  local partitions, gone = params.partitions, {}
  for at = 1, #partitions, 2 do
    local position = redis.call('HGET', keys[5], partitions[at])
    if position and string.match(position, '^%S+ %S+ (%S*)') == partitions[at + 1] then
      gone[#gone + 1] = partitions[at]
    end
  end
  group.in_batches('HDEL', keys[5], gone) -- first write
  return #gone
end)
