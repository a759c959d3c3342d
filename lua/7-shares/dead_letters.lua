-- Dead letters: records that were rejected, or delivered as often as they may be, in a group with a topic for them. A
-- record stays ARCHIVING, and holds the start, until a front-end has its copy acknowledged by that topic. Any front-end
-- may do that work: one whose lease has ended loses it to the next, and then a copy may come twice. Source: KIP-1191

korvet.define({
  name = 'share_dead_letters', flags = { 'allow-oom' },
  description = 'lease dead letters of a share partition, to copy them into their topic',
  keys = '@share',
  args = 'topic_id   group its id   owner of the lease, without blanks   lease_ms:ms   most:int of records',
  returns = [=[{code, [first, last, count, cause, ...]}: the lowest ones that nobody leases, or that the owner does, by
    their offsets, with the number of deliveries; cause: rejected | limit. May be repeated]=],
  bound = '1000 ranges',
  codes = 'GONE, GROUP_ID_NOT_FOUND (the group has no state here)',
}, function(keys, params)
  local s, refusal = share.open(keys, params)
  if refusal then
    return { refusal, {} }
  end
  local leased, left = {}, params.most
  local lease = { ends = s.now + params.lease_ms, lasts = params.lease_ms, owner = params.owner }
  for _, text in ipairs(share.archiving(s, 0, share.MOST)) do
    local r = share.range(s, text)
    if left > 0 and (r.nonce == params.owner or not value.is_running(r.ends, s.now, r.lasts)) then
      local last = math.min(r.last, r.first + left - 1)
      share.remove(s, r)
      share.add_archiving(s, r.first, last, r.count, r, r.member, lease)
      if last < r.last then
        share.add_part(s, r, last + 1, r.last)
      end
      left = left - (last - r.first + 1)
      for _, field in ipairs({ r.first, last, r.count, r.member }) do
        leased[#leased + 1] = field
      end
    end
  end
  share.save(s) -- first write
  return { code.NONE, leased }
end)

korvet.define({
  name = 'share_copied', flags = { 'allow-oom' },
  description = 'finish dead letters that were copied into their topic',
  keys = '@share',
  args = 'topic_id   group its id   owner of their lease   spans*2<=2000 first and last offset of each',
  returns = '{code, finished}: how many records; those that another owner leases stay; may be repeated',
  bound = '1000 spans, each in one range',
  codes = 'GONE, GROUP_ID_NOT_FOUND (the group has no state here)',
}, function(keys, params)
  local s, refusal = share.open(keys, params)
  if refusal then
    return { refusal, 0 }
  end
  local spans = {}
  for at = 1, #params.spans do
    spans[at] = value.number(params.spans[at], 'offset')
  end
  local finished = 0
  for at = 1, #spans, 2 do
    local first, last = spans[at], spans[at + 1]
    local above, least = value.integer(first + share.AVAILABLE), value.integer(share.AVAILABLE)
    local text = redis.call('ZRANGE', keys[4], above, least, 'BYSCORE', 'REV', 'LIMIT', 0, 1)[1]
    local r = text and share.range(s, text)
    if r and r.nonce == params.owner and r.first <= first and first <= last and last <= r.last then
      share.remove(s, r)
      if r.first < first then
        share.add_part(s, r, r.first, first - 1)
      end
      if last < r.last then
        share.add_part(s, r, last + 1, r.last)
      end
      share.finish(s, first)
      share.flush(s) -- first write
      finished = finished + last - first + 1
    end
  end
  share.save(s)
  return { code.NONE, finished }
end)
