-- Redis groups in a compaction: the stream that takes the log's place gets them as they are, with their consumers and
-- pending entries. Pending entries of removed entries go, and a consumer's idle time begins anew.
--
-- If the groups are few in all, the call that swaps the streams copies them. Else earlier calls copy some each. The
-- hash `<log>:spare:groups` has each group's state at its copy, and the progress of the copy. The call that
-- finds all copies current, or copies the changed groups anew, makes the swap.

-- Groups, consumers and pending entries that one call copies, in all.
compaction.MOST_COPIED = 500
-- Groups of a log that is compacted: each call looks at all of them.
compaction.MOST_GROUPS = 1000
-- Stands in the hash after a group's description if all of the group is copied.
compaction.WHOLE = '='

-- Make a group of the log in the spare, without its pending entries. Returns how much was copied.
function compaction.begin_group(keys, group, totals, found_below)
  local id = group['last-delivered-id']
  local read = log.batches_below_once(keys[4], string.match(id, '^%d+'), totals, found_below)
  redis.call('XGROUP', 'DESTROY', keys[4], group.name)
  redis.call('XGROUP', 'CREATE', keys[4], group.name, id, 'ENTRIESREAD', value.integer(read))
  if group.consumers > 0 then
    for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', keys[1], group.name)) do
      redis.call('XGROUP', 'CREATECONSUMER', keys[4], group.name, value.pairs(flat).name)
    end
  end
  return 1 + group.consumers
end

-- Copy pending entries of a group, at most this many. Returns their number and the next id; nil if none are left.
function compaction.copy_pending(keys, name, from, most)
  local pending = redis.call('XPENDING', keys[1], name, from, '+', most)
  for _, one in ipairs(pending) do
    redis.call(
      'XCLAIM', keys[4], name, one[2], 0, one[1],
      'IDLE', value.integer(one[3]), 'RETRYCOUNT', value.integer(one[4]), 'FORCE', 'JUSTID'
    )
  end
  return #pending, #pending == most and '(' .. pending[#pending][1] or nil
end

-- Copy a group, from its beginning or from where a former call stopped; about so much at most. Returns how much, and
-- where to go on.
function compaction.copy_group(keys, group, totals, found_below, from, most)
  local copied, count = 0, 0
  if not from then
    copied, from = compaction.begin_group(keys, group, totals, found_below), '-'
  end
  if group.pending > 0 then
    count, from = compaction.copy_pending(keys, group.name, from, math.max(1, most - copied))
  else
    from = nil
  end
  return copied + count, from
end

-- The log's Redis groups and how many groups, consumers and pending entries they are; nil if they are too many.
function compaction.groups_of(log_key)
  local groups, size = {}, 0
  if value.pairs(redis.call('XINFO', 'STREAM', log_key)).groups > compaction.MOST_GROUPS then
    return nil
  end
  for at, flat in ipairs(redis.call('XINFO', 'GROUPS', log_key)) do
    local group = value.pairs(flat)
    groups[at] = group
    size = size + 1 + group.consumers + group.pending
    if group.consumers > compaction.MOST_COPIED then
      return nil
    end
  end
  return groups, size
end

-- The point at which a group's copy goes on, by its text in the hash: nil if the copy is right, false to begin anew.
-- Also returns the text of the group's present state.
function compaction.left_of(group, copy)
  local now = string.format('%s %d %d ', group['last-delivered-id'], group.pending, group.consumers)
  if not copy or string.sub(copy, 1, #now) ~= now then
    return false, now
  end
  local from = string.sub(copy, #now + 1)
  if from == compaction.WHOLE then
    return nil, now
  end
  return from, now
end

-- Bring the spare's groups up to the log's. Returns done, more (some are left) or crowded (they are too many).
function compaction.keep_groups(keys, totals)
  local groups, size = compaction.groups_of(keys[1])
  if not groups then
    return 'crowded'
  end
  local copies_key, found_below, copied = log.copies_key(keys[4]), {}, 0
  local copies = value.pairs(redis.call('HGETALL', copies_key))
  for _, group in ipairs(groups) do
    local from, now = compaction.left_of(group, size > compaction.MOST_COPIED and copies[group.name])
    copies[group.name] = nil
    if from ~= nil then
      if copied >= compaction.MOST_COPIED then
        return 'more'
      end
      local count, following = compaction.copy_group(
        keys, group, totals, found_below, from or nil, compaction.MOST_COPIED - copied
      )
      copied = copied + count
      redis.call('HSET', copies_key, group.name, now .. (following or compaction.WHOLE))
      if following and size > compaction.MOST_COPIED then
        return 'more'
      end
    end
  end
  for name in pairs(copies) do
    redis.call('XGROUP', 'DESTROY', keys[4], name)
    redis.call('HDEL', copies_key, name)
  end
  return 'done'
end
