-- A group's share partitions as a whole: they begin, are moved, described and deleted.

korvet.define({
  name = 'share_set',
  description = 'begin a share partition, or move its start',
  keys = '@share',
  args = [[
    topic_id   group its id   id of the group, a greater one if it is made anew
    start:int -1 for the first acquisition to find it; at most the log's end
    mode:begin|move `begin` leaves one that has begun under this id as it is
  ]],
  returns = '{code, start}; may be repeated',
  codes = 'GONE, GROUP_ID_NOT_FOUND (to begin: a newer group of this id has begun)',
  source = 'ShareCoordinatorService.initializeState, GroupCoordinatorService.alterShareGroupOffsets',
  notes = 'To move the start forgets all locks and counts. The group has to be without members.',
}, function(keys, params)
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'end')
  if meta[1] ~= params.topic_id then
    return { code.GONE, -1 }
  end
  local text = redis.call('HGET', keys[3], params.group)
  local known = text and share.parsed(text, keys[3], params.group)
  if known and params.mode == 'begin' then
    if known.id == share.NO_GROUP then
      known.id = params.id
      redis.call('HSET', keys[3], params.group, share.header(known)) -- first write
    end
    if known.id >= params.id then
      return { known.id == params.id and code.NONE or code.GROUP_ID_NOT_FOUND, known.start }
    end
  end
  local start = math.max(math.min(params.start, tonumber(meta[2])), -1)
  redis.call('UNLINK', keys[4]) -- first write
  redis.call('ZADD', keys[4], '-inf', '')
  redis.call('HSET', keys[3], params.group, share.header(share.fresh(params.id, start, value.now_ms())))
  redis.call('SPUBLISH', keys[3], params.group)
  return { code.NONE, start }
end)

korvet.define({
  name = 'share_delete', flags = { 'allow-oom' },
  description = 'remove a share partition',
  keys = '@share',
  args = "topic_id   group its id   id of the group, or '' for any",
  returns = '{code, deleted}: 1 if there was one; one of another id stays; may be repeated',
  codes = 'GONE',
  source = 'ShareCoordinatorService.deleteState',
}, function(keys, params)
  if redis.call('HGET', keys[2], 'topic_id') ~= params.topic_id then
    return { code.GONE, 0 }
  end
  local text = redis.call('HGET', keys[3], params.group)
  local known = text and share.parsed(text, keys[3], params.group)
  if known and params.id ~= '' and known.id ~= params.id then
    return { code.NONE, 0 }
  end
  redis.call('HDEL', keys[3], params.group) -- first write
  redis.call('UNLINK', keys[4])
  if known then
    redis.call('SPUBLISH', keys[3], params.group)
  end
  return { code.NONE, known and 1 or 0 }
end)

-- The offsets of the log that a group has not finished. Source: KIP-1226
function share.lag(s)
  if s.start < 0 then
    return -1
  end
  return math.min(s.log_end - math.max(s.log_start, s.start), math.max(s.log_end - s.next, 0) + s.tracked)
end

korvet.define({
  name = 'share_describe', flags = { 'no-writes', 'allow-oom' },
  description = 'describe a share partition',
  keys = '@share',
  args = "topic_id   group its id   cursor:int 0 at first, -1 for no ranges",
  returns = [=[{code, id, start, next, lag, now_ms, [range, ...], cursor}: ranges as their texts, the available ones
    first. start and lag are -1 before the first acquisition; the cursor is -1 at the end]=],
  bound = '1000 ranges a call',
  codes = 'GONE, GROUP_ID_NOT_FOUND (the group has no state here)',
  source = 'KIP-932 DescribeShareGroupOffsets, ReadShareGroupStateSummary',
}, function(keys, params)
  local s, refusal = share.open(keys, params)
  if refusal then
    return { refusal, '', -1, -1, -1, -1, {}, -1 }
  end
  local first, texts = params.cursor + 1, {}
  if first > 0 then
    texts = redis.call('ZRANGE', keys[4], first, first + share.MOST - 1)
  end
  local further = #texts == share.MOST and first + share.MOST - 1 or -1
  return { code.NONE, s.id, s.start, s.next, share.lag(s), s.now, texts, further }
end)
