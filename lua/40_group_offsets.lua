-- Committed offsets: a hash from the place `topic:partition` to the text `offset leader_epoch topic_id metadata`, the
-- leader epoch -1 where the client named none. A reader compares the topic id: an offset of a former topic of the same
-- name is none.

-- Why a commit is refused. Source: OffsetMetadataManager.validateOffsetCommit, ClassicGroup.validateOffsetCommit
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

-- Whether a commit without a member may go to a group in which nothing is due. Its expiry is moved now and then, for
-- which the group has to be looked at in full, as where there are no offsets yet.
function group.takes_any_commit(keys, generation, retention)
  local fields = redis.call('HMGET', keys[1], 'state', 'expires_at', 'next_due')
  if fields[1] ~= 'Empty' or tonumber(generation) >= 0 then
    return false
  end
  local now, expires_at = value.now_ms(), tonumber(fields[2])
  local is_fresh = expires_at > now and now + retention - expires_at <= retention / 1000
  return is_fresh and now < (tonumber(fields[3]) or math.huge) and redis.call('EXISTS', keys[5]) == 1
end

-- A commit that has to look at the group in full.
function group.commit_slowly(keys, args, offsets)
  local id, instance_id, generation = args[4], args[5], value.number(args[6], 'generation')
  local retention = value.number(args[8], 'retention')
  local g = group.open(keys)
  group.advance(g, args[1])
  local refuses = group.is_consumer(g) and group.consumer.commit_refusal or group.commit_refusal
  local refusal = refuses(g, id, instance_id, generation, value.number(args[7], 'version'))
  if not refusal then
    local member = group.member(g, id)
    if member and not group.is_consumer(g) then
      group.renew(g, id, member.session_timeout)
    elseif group.is(g, 'Empty') then
      group.set(g, 'retention', retention)
      group.set(g, 'expires_at', g.now + retention)
    elseif not group.exists(g) and #offsets > 0 then
      if args[2] == '' then
        return code.UNINDEXED
      end
      group.found(g, args[2], args[3], retention)
    end
  end
  group.save(g, not refusal and offsets)
  return refusal or code.NONE
end

-- group_commit: commit offsets, as a member or as a consumer without a group's protocol
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1] outages: `served_until from-to ...` or ''
-- ARGV[2] id and ARGV[3] locator of a new group, '' while it is not in the index
-- ARGV[4] member_id or ''   ARGV[5] instance_id or ''   ARGV[6] generation or -1   ARGV[7] version of the OffsetCommit
-- ARGV[8] retention ms   ARGV[9..] offsets: `topic:partition`, `offset leader_epoch topic_id metadata`, ...
-- Returns code
-- Codes: LATE, UNINDEXED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND,
-- REBALANCE_IN_PROGRESS; of a group of the consumer protocol STALE_MEMBER_EPOCH, UNSUPPORTED_VERSION
-- Source: OffsetMetadataManager.commitOffset
function group.commit(keys, args)
  group.expect(keys, args, 'commit', 8, 2)
  if group.is_late(args[1]) then
    return code.LATE
  end
  local offsets = {}
  for at = 9, #args do
    offsets[at - 8] = args[at]
  end
  local state
  if args[4] ~= '' then
    state = group.beat(keys, args[4], args[5], args[6])
  elseif group.takes_any_commit(keys, args[6], args[8]) then
    state = 'Empty'
  end
  if not state and not group.consumer.takes_commit(keys, args[4], args[6], args[7]) then
    return group.commit_slowly(keys, args, offsets)
  elseif state == 'CompletingRebalance' then
    return code.REBALANCE_IN_PROGRESS
  end
  group.in_batches('HSET', keys[5], offsets)
  return code.NONE
end
redis.register_function{
  function_name = 'korvet_group_commit',
  callback = group.commit,
  flags = { 'allow-oom' },
  description = 'commit offsets, as a member or as a consumer without a group\'s protocol',
}

-- All committed offsets, [place, position, ...], with `unstable` at the places of a set.
function group.with_unstable(flat, unstable)
  for at = 1, #flat, 2 do
    if unstable[flat[at]] then
      flat[at + 1] = 'unstable'
      unstable[flat[at]] = nil
    end
  end
  for place in pairs(unstable) do
    flat[#flat + 1] = place
    flat[#flat + 1] = 'unstable'
  end
  return flat
end

-- group_fetch: read committed offsets
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- KEYS[6] pending  hash  (optional) producer id -> its transactions and the offsets of the open one
-- ARGV[1..] places: `topic:partition`, ...; none for all
-- Returns [`topic:partition`, `offset leader_epoch topic_id metadata` or '', ...]; `unstable` in the place of an offset
-- that an open transaction may change, where the key pending is given
-- Source: OffsetMetadataManager.fetchOffsets
function group.fetch(keys, args)
  group.expect(keys, args, 'fetch', 0, 1, keys[6] and 1)
  local fields = redis.call('HMGET', keys[1], 'expires_at', 'transactions')
  local is_gone = group.has_expired(fields[1], fields[2], value.now_ms())
  local unstable = keys[6] and group.unstable(keys[6]) or {}
  if #args == 0 then
    return is_gone and {} or group.with_unstable(redis.call('HGETALL', keys[5]), unstable)
  end
  local found = {}
  for first = 1, #args, group.BATCH do
    local last = math.min(first + group.BATCH - 1, #args)
    local positions = is_gone and {} or redis.call('HMGET', keys[5], unpack(args, first, last))
    for at = first, last do
      found[#found + 1] = args[at]
      found[#found + 1] = unstable[args[at]] and 'unstable' or positions[at - first + 1] or ''
    end
  end
  return found
end
redis.register_function{
  function_name = 'korvet_group_fetch',
  callback = group.fetch,
  flags = { 'no-writes', 'allow-oom' },
  description = 'read committed offsets',
}

-- The topics that the members subscribe to, as a set; nil where that is not known.
-- Source: ClassicGroup.computeSubscribedTopics
function group.subscribed(g)
  local topics = {}
  if not group.is(g, 'Empty') and not g.fields.protocol then
    return nil
  end
  for _, id in ipairs(group.member_ids(g)) do
    local named = group.subscription(group.metadata(g, g.members[id]))
    if not named then
      return nil
    end
    for _, name in ipairs(named) do
      topics[name] = true
    end
  end
  return topics
end

-- group_offset_delete: forget committed offsets of topics that no member subscribes to
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- KEYS[6] pending  hash  (optional) producer id -> its transactions and the offsets of the open one
-- ARGV[1] outages: `served_until from-to ...` or ''   ARGV[2..] places: `topic:partition`, ...
-- Returns {code, [code, ...]}, one for each place; where the key pending is given, open transactions forget them as
-- well
-- Codes: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP; of a place GROUP_SUBSCRIBED_TO_TOPIC
-- Source: OffsetMetadataManager.deleteOffsets, ClassicGroup.validateOffsetDelete
function group.offset_delete(keys, args)
  group.expect(keys, args, 'offset_delete', 1, 1, keys[6] and 1)
  local g = group.open({ unpack(keys, 1, group.KEYS) })
  group.advance(g, args[1])
  local outcome, codes, removed = code.NONE, {}, {}
  if not group.exists(g) then
    outcome = code.GROUP_ID_NOT_FOUND
  elseif not group.is(g, 'Empty') and not group.is_consumer(g) and g.fields.protocol_type ~= 'consumer' then
    outcome = code.NON_EMPTY_GROUP
  else
    local topics = group.is_consumer(g) and group.consumer.subscribed(g) or group.subscribed(g)
    for at = 2, #args do
      local place = args[at]
      if not topics or topics[string.match(place, '^(.*):%d+$')] then
        codes[at - 1] = code.GROUP_SUBSCRIBED_TO_TOPIC
      else
        codes[at - 1] = code.NONE
        removed[#removed + 1] = place
      end
    end
  end
  if keys[6] and #removed > 0 then
    group.drop_held(keys[6], removed) -- first write
  end
  group.save(g)
  group.in_batches('HDEL', keys[5], removed)
  return { outcome, codes }
end
redis.register_function{
  function_name = 'korvet_group_offset_delete',
  callback = group.offset_delete,
  flags = { 'allow-oom' },
  description = 'forget committed offsets of topics that no member subscribes to',
}

-- group_offset_forget: forget committed offsets of topics that are gone
-- KEYS[1] group    hash  state, generation, leader, deadlines
-- KEYS[2] members  hash  member id -> record
-- KEYS[3] sessions zset  member id -> end of its session
-- KEYS[4] static   hash  instance id -> member id
-- KEYS[5] offsets  hash  topic:partition -> committed offset
-- ARGV[1..] places: `topic:partition`, topic_id, ... An offset of another topic of the same name stays.
-- Returns how many were forgotten
-- Source: OffsetMetadataManager.onPartitionsDeleted
function group.offset_forget(keys, args)
  group.expect(keys, args, 'offset_forget', 0, 2)
  local gone = {}
  for at = 1, #args, 2 do
    local position = redis.call('HGET', keys[5], args[at])
    if position and string.match(position, '^%S+ %S+ (%S*)') == args[at + 1] then
      gone[#gone + 1] = args[at]
    end
  end
  group.in_batches('HDEL', keys[5], gone) -- first write
  return #gone
end
redis.register_function{
  function_name = 'korvet_group_offset_forget',
  callback = group.offset_forget,
  flags = { 'allow-oom' },
  description = 'forget committed offsets of topics that are gone',
}
