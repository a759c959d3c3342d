-- Quotas of a namespace. Front-ends keep all settings in memory. A version grows with each change, and the key's
-- channel carries it.
--
-- A setting's field is an entity and a quota, as in `user=alice client-id=<default> producer_byte_rate`, with
-- percent-encoded names. Its text is a number. The field of the empty name has the version.
--
-- Clients' use is counted in buckets. A bucket fills at the quota's rate up to its capacity. Front-ends let clients
-- through by their own knowledge, and report it a few times a second. So a bucket may be in debt.
-- Source: ClientQuotaControlManager, org.apache.kafka.common.metrics.stats.TokenBucket
local quotas = { MOST_BYTES = 2048, LONGEST_MS = 2592000000 }

-- The quotas of each kind of entity.
quotas.OF_CLIENTS = {
  producer_byte_rate = true, consumer_byte_rate = true, request_percentage = true, controller_mutation_rate = true,
}
quotas.KINDS = {
  ['user'] = quotas.OF_CLIENTS,
  ['client-id'] = quotas.OF_CLIENTS,
  ['user client-id'] = quotas.OF_CLIENTS,
  ['ip'] = { connection_creation_rate = true },
}

-- A text as a number above zero and below infinity, or nil.
function quotas.positive(text)
  local number = tonumber(text)
  return number and number > 0 and number < math.huge and number or nil
end

-- True if a field and a text are a setting.
function quotas.is_setting(field, text)
  local entity, key = string.match(field, '^(.+) ([%l_]+)$')
  local keys = entity and quotas.KINDS[(string.gsub(entity, '=[^ =]+', ''))]
  return keys and keys[key] and quotas.positive(text) ~= nil
end

-- The code of a refusal, or NONE.
function quotas.problem(field, text)
  if field == '' or text ~= '' and not quotas.is_setting(field, text) then
    return code.INVALID_REQUEST
  end
  return #field + #text > quotas.MOST_BYTES and code.POLICY_VIOLATION or code.NONE
end

korvet.define({
  name = 'quotas_read', flags = { 'no-writes', 'allow-oom' },
  description = 'all quotas, or only their version if the caller knows that version',
  keys = "quotas hash entity and quota -> number, '' -> version",
  args = 'known_version:int a version, or -1',
  returns = '{0, version, [field, number, ...]}; no fields when known_version is the version',
  bound = '10000 quotas',
}, function(keys, params)
  return security.read(keys[1], params.known_version)
end)

korvet.define({
  name = 'quotas_alter', flags = { 'allow-oom' },
  description = 'set and delete quotas, all or none; a deletion of nothing is passed over',
  keys = 'quotas hash as in quotas_read',
  args = "changes+2<=2000 entity and quota, and its number in turn; '' deletes it; each entity and quota once",
  returns = '{code}',
  bound = '10000 quotas, each of 2048 bytes with its field',
  codes = 'INVALID_REQUEST (a text is no quota), POLICY_VIOLATION (a quota is too long, or there would be too many)',
  source = 'ClientQuotaControlManager.alterClientQuotas',
}, function(keys, params)
  local changes = params.changes
  local more, changed = 0, false
  for at = 1, #changes, 2 do
    local field, text = changes[at], changes[at + 1]
    local problem, before = quotas.problem(field, text), redis.call('HGET', keys[1], field) or ''
    if problem ~= code.NONE then
      return { problem }
    end
    more = more + (text ~= '' and 1 or 0) - (before ~= '' and 1 or 0)
    changed = changed or before ~= text
  end
  if security.exceeds(keys[1], more) then
    return { code.POLICY_VIOLATION }
  end
  security.write(keys[1], changed and changes or {}) -- first write
  return { code.NONE }
end)

korvet.define({
  name = 'quotas_use',
  description = 'take from buckets what a front-end has let through, and return what each has left',
  keys = 'buckets* string `level at_ms`; a full bucket is no key',
  args = 'uses+3<=300 for each bucket the amount, the rate a second and the capacity, as decimal numbers',
  returns = '{0, [level, ...]} levels as texts, below zero in debt',
}, function(keys, params)
  local uses = params.uses
  if #uses ~= 3 * #keys then
    error('korvet_quotas_use takes three arguments for each key', 0)
  end
  local now, texts = value.now_ms(), redis.call('MGET', unpack(keys))
  local levels, full_ms = {}, {}
  for at = 1, #keys do
    local amount, rate, capacity = tonumber(uses[3 * at - 2]), quotas.positive(uses[3 * at - 1]),
      quotas.positive(uses[3 * at])
    if not (amount and amount >= 0 and amount < math.huge and rate and capacity) then
      error('korvet_quotas_use: an amount, a rate or a capacity is no number of its kind', 0)
    end
    local level, since = string.match(texts[at] or '', '^(-?%d+%.%d+) (%d+)$')
    -- If the clock went back, the bucket does not fill meanwhile.
    level = level and tonumber(level) + rate * math.max(0, now - tonumber(since)) / 1000 or capacity
    levels[at] = math.min(capacity, level) - amount
    full_ms[at] = math.min(quotas.LONGEST_MS, math.ceil((capacity - levels[at]) / rate * 1000))
  end
  for at, key in ipairs(keys) do
    levels[at] = string.format('%.6f', levels[at])
    if full_ms[at] > 0 then
      redis.call('SET', key, levels[at] .. ' ' .. value.integer(now), 'PX', value.integer(full_ms[at])) -- first write
    end
  end
  return { code.NONE, levels }
end)
