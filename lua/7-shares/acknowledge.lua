-- Acknowledgements: of all their offsets or of none.

-- The types of KIP-932 and KIP-1222, and korvet's own of records that were acquired and never sent: a time in ms before
-- which nobody gets them, and UNDELIVERED is long past.
share.GAP, share.ACCEPT, share.RELEASE, share.REJECT, share.RENEW, share.UNDELIVERED = 0, 1, 2, 3, 4, 5

-- The acknowledgements of a call, each {first, last, type}; nil if they are none.
function share.acknowledgements(flat)
  local found, past = {}, 0
  for at = 1, #flat, 3 do
    local first = value.number(flat[at], 'first')
    local last, kind = value.number(flat[at + 1], 'last'), value.number(flat[at + 2], 'type')
    if first < past or last < first or kind < share.GAP then
      return nil
    end
    found[#found + 1] = { first = first, last = last, type = kind }
    past = last + 1
  end
  return found
end

-- The acquired range that holds an offset; nil if none does. The walk goes upwards, and reads on where it is.
function share.holding(s, walk, offset, last)
  local r = walk.range
  if r and offset <= r.last then
    return offset >= r.first and r or nil
  end
  walk.at = walk.at + 1
  if not walk.page[walk.at] then
    local goes_on = r and r.last + 1 == offset
    walk.at, walk.page = 1, goes_on
      and redis.call('ZRANGEBYSCORE', s.keys[4], value.integer(offset), value.integer(last), 'LIMIT', 0, share.PAGE)
      or redis.call('ZRANGE', s.keys[4], value.integer(offset), 0, 'BYSCORE', 'REV', 'LIMIT', 0, 1)
  end
  local text = walk.page[walk.at]
  r = text and share.range(s, text)
  walk.range, walk.seen = r, walk.seen + 1
  return r and r.first <= offset and offset <= r.last and r or nil
end

-- True if the connection of a call holds a range; with the nonce * any connection of its member.
function share.is_held(s, r, params)
  local is_own = r.nonce == params.nonce or params.nonce == '*'
  return r.state == 'acquired' and r.member == params.member and is_own and not share.is_over(s, r)
end

-- The parts of acquired ranges that acknowledgements name, each {range, first, last, type}, or the code that refuses
-- them all. Also the offset at which a further call has to go on, if these are more ranges than one call takes.
-- Source: SharePartition.acknowledge, fetchSubMapForAcknowledgementBatch, acknowledgePerOffsetBatchRecords
function share.parts(s, acknowledgements, params)
  local parts, walk = {}, { at = 0, page = {}, seen = 0 }
  local start = math.max(s.start, s.log_start)
  for _, one in ipairs(acknowledgements) do
    local offset = math.max(one.first, start)
    if offset <= one.last and s.tracked == 0 then
      return code.INVALID_RECORD_STATE
    elseif offset <= one.last and one.last >= s.next then
      return code.INVALID_REQUEST
    end
    while offset <= one.last do
      local r = share.holding(s, walk, offset, one.last)
      if not r or not share.is_held(s, r, params) then
        return code.INVALID_RECORD_STATE
      elseif walk.seen > share.MOST then
        return code.NONE, parts, offset
      end
      local last = math.min(r.last, one.last)
      parts[#parts + 1] = { range = r, first = offset, last = last, type = one.type }
      offset = last + 1
    end
  end
  return code.NONE, parts, -1
end

-- Carry out the acknowledgement of a part, whose range was removed.
function share.settle(s, part, params)
  local r, count = part.range, part.range.count
  if part.type == share.RELEASE then
    share.give_back(s, r, part.first, part.last, count, params)
  elseif part.type >= share.UNDELIVERED then
    share.put_back(s, r, part.first, part.last, count - 1, part.type)
  elseif part.type == share.RENEW then
    share.add_timed(s, 'acquired', part.first, part.last, count, r, share.lock(s, params, r.nonce))
  elseif part.type == share.REJECT then
    share.fail(s, r, part.first, part.last, count, 'rejected', params)
  else
    share.finish(s, part.first)
  end
end

function share.settle_all(s, parts, params)
  local r, from
  local function leave_rest()
    if r and from <= r.last then
      share.add_part(s, r, from, r.last)
    end
  end
  for _, part in ipairs(parts) do
    if part.range ~= r then
      leave_rest()
      r, from = part.range, part.range.first
      share.remove(s, r)
    end
    if from < part.first then
      share.add_part(s, r, from, part.first - 1)
    end
    share.settle(s, part, params)
    from = part.last + 1
  end
  leave_rest()
end

-- Acknowledge what a call names, in memory. Returns a code, and the offset at which a further call has to go on.
function share.acknowledge(s, params)
  local acknowledgements = share.acknowledgements(params.acknowledgements)
  if not acknowledgements then
    return code.INVALID_REQUEST, -1
  end
  local outcome, parts, further = share.parts(s, acknowledgements, params)
  if outcome ~= code.NONE then
    return outcome, -1
  elseif further >= 0 and params.part ~= 'check' and params.part ~= 'apply' then
    return code.RETRY, further
  elseif params.part ~= 'check' then
    share.settle_all(s, parts, params)
  end
  return code.NONE, further
end

korvet.define({
  name = 'share_acknowledge', flags = { 'allow-oom' },
  description = 'acknowledge records that a member acquired, all or none of them',
  keys = '@share',
  args = [[
    outages   topic_id   group its id   member   nonce of the connection that acquired them   lock_ms:ms of renewals
    limit:int of deliveries   backoff_ms:ms as for share_acquire   backoff_most_ms:ms   dead_letters:int
    part:all|check|apply `all` does it in one call. `check` and `apply` go through more ranges than that in several
    acknowledgements*3<=3000 first, last and type, by their offsets. type: 0 gap, 1 accept, 2 release, 3 reject,
      4 renew, 5 undelivered, which does not count as a delivery. A greater one is undelivered, too: a time in ms since
      1970, at most 30 days ahead, before which nobody gets them
  ]],
  returns = [[{code, start, further, archiving}: further is the offset at which a further call of this part has to go
    on, -1 if it is done; archiving the number of ranges of dead letters. Nothing is written if the code is not 0]],
  bound = '1000 acknowledgements, and 1000 acquired ranges',
  codes = [[GONE, LATE, GROUP_ID_NOT_FOUND (the group has no state here), INVALID_REQUEST (an offset was never acquired,
    or these are no acknowledgements), INVALID_RECORD_STATE (the member does not hold an offset, or no longer), RETRY
    (more than 1000 ranges: go through them by `check`, then by `apply`)]],
  source = 'SharePartition.acknowledge, InFlightState.tryUpdateState',
  notes = [[Offsets below the start are finished, and those below the log start are gone: an acknowledgement of them
    changes nothing, and is no error.]],
}, function(keys, params)
  if group.is_late(params.outages) then
    return { code.LATE, -1, -1, 0 }
  end
  local s, refusal = share.open(keys, params)
  if refusal then
    return { refusal, -1, -1, 0 }
  end
  s.outages = group.outages(params.outages, s.now)
  local outcome, further = share.acknowledge(s, params)
  if outcome ~= code.NONE then
    return { outcome, s.start, further, 0 }
  end
  if params.part ~= 'check' then
    share.save(s) -- first write
  end
  return { code.NONE, s.start, further, s.archiving }
end)

-- True if a release is of a range.
function share.is_to_release(r, params)
  local is_own = r.nonce == params.nonce
  return r.state == 'acquired' and (params.member == '' or r.member == params.member)
    and (params.which == 'any' or is_own == (params.which == 'own'))
end

korvet.define({
  name = 'share_release', flags = { 'allow-oom' },
  description = 'release records that a member acquired, because its session or its connection ended',
  keys = '@share',
  args = [[
    outages   topic_id   group its id   member or '' for all   nonce of a connection   limit:int of deliveries
    backoff_ms:ms as for share_acquire   backoff_most_ms:ms   dead_letters:int
    which:own|others|any what that connection acquired, what others of the member did, or both
    offset:int at which to go on, 0 at first
  ]],
  returns = [[{code, released, further, archiving}: how many records, and the offset at which to go on, -1 if all is
    done]],
  bound = '1000 acquired ranges a call',
  codes = 'GONE, LATE, GROUP_ID_NOT_FOUND (the group has no state here)',
  source = 'SharePartition.releaseAcquiredRecords',
  notes = 'May be repeated. A late call could release what its member acquired meanwhile by another connection.',
}, function(keys, params)
  if group.is_late(params.outages) then
    return { code.LATE, 0, -1, 0 }
  end
  local s, refusal = share.open(keys, params)
  if refusal then
    return { refusal, 0, -1, 0 }
  end
  local texts = redis.call(
    'ZRANGEBYSCORE', keys[4], params.offset, share.BELOW_ARCHIVING, 'LIMIT', 0, share.MOST
  )
  local released, r = 0, nil
  for _, text in ipairs(texts) do
    r = share.range(s, text)
    if share.is_to_release(r, params) then
      share.remove(s, r)
      share.give_back(s, r, r.first, r.last, r.count, params)
      released = released + r.last - r.first + 1
    end
  end
  if released > 0 then
    share.save(s) -- first write
  end
  return { code.NONE, released, #texts == share.MOST and r.last + 1 or -1, s.archiving }
end)
