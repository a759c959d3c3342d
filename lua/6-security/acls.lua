-- Access rules of a namespace. Front-ends keep all of them in memory, and judge requests by them.
--
-- A rule is the text of a JSON array [resource type, pattern type, name, principal, host, operation, permission], with
-- Kafka's numbers. Equal rules have equal texts, so a rule is there once. The field of the empty name has the version.
-- Source: org.apache.kafka.metadata.authorizer.StandardAcl
local acls = {
  MOST_BYTES = 2048,
  -- The numbers that a rule may have, first and last.
  TYPES = { 2, 7 }, PATTERNS = { 3, 4 }, OPERATIONS = { 2, 15 }, PERMISSIONS = { 2, 3 },
}

function acls.is_within(number, range)
  return type(number) == 'number' and number % 1 == 0 and range[1] <= number and number <= range[2]
end

-- True if a text is a rule.
function acls.is_rule(text)
  local is_json, rule = pcall(cjson.decode, text)
  -- One spelling only, or nobody could remove the rule by what it says.
  is_json = is_json and string.find(text, '^%[%d,%d,".*",%d+,%d%]$')
  if not is_json or type(rule) ~= 'table' or #rule ~= 7 then
    return false
  end
  for at = 3, 5 do
    if type(rule[at]) ~= 'string' or rule[at] == '' then
      return false
    end
  end
  return acls.is_within(rule[1], acls.TYPES) and acls.is_within(rule[2], acls.PATTERNS)
    and acls.is_within(rule[6], acls.OPERATIONS) and acls.is_within(rule[7], acls.PERMISSIONS)
end

-- For each rule 1 if it exists, else 0.
function acls.present(key, rules)
  local present = {}
  for at, rule in ipairs(rules) do
    present[at] = redis.call('HEXISTS', key, rule)
  end
  return present
end

korvet.define({
  name = 'acls_read', flags = { 'no-writes', 'allow-oom' },
  description = 'all access rules, or only their version if the caller knows that version',
  keys = "acls hash rule as a JSON array -> 1, '' -> version",
  args = 'known_version:int a version, or -1',
  returns = '{0, version, [rule, ...]}; no rules when known_version is the version',
  bound = '10000 rules',
}, function(keys, params)
  local reply, rules = security.read(keys[1], params.known_version), {}
  for at = 1, #reply[3], 2 do
    rules[#rules + 1] = reply[3][at]
  end
  return { code.NONE, reply[2], rules }
end)

korvet.define({
  name = 'acls_add',
  description = 'add access rules, all or none; rules that are there stay',
  keys = 'acls hash as in acls_read',
  args = 'rules+<=10000 JSON arrays',
  returns = '{code, number of rules added}',
  bound = '10000 rules, each of 2048 bytes',
  codes = 'INVALID_REQUEST (a text is no rule), POLICY_VIOLATION (a rule is too long, or there would be too many)',
  source = 'AclControlManager.createAcls',
}, function(keys, params)
  local present = acls.present(keys[1], params.rules)
  local new, seen = {}, {}
  for at, rule in ipairs(params.rules) do
    if #rule > acls.MOST_BYTES then
      return { code.POLICY_VIOLATION, 0 }
    elseif not acls.is_rule(rule) then
      return { code.INVALID_REQUEST, 0 }
    elseif present[at] == 0 and not seen[rule] then
      seen[rule], new[#new + 1], new[#new + 2] = true, rule, '1'
    end
  end
  if security.exceeds(keys[1], #new / 2) then
    return { code.POLICY_VIOLATION, 0 }
  end
  security.write(keys[1], new) -- first write
  return { code.NONE, #new / 2 }
end)

korvet.define({
  name = 'acls_remove', flags = { 'allow-oom' },
  description = 'remove access rules and damaged ones, all as one; those that are not there are passed over',
  keys = 'acls hash as in acls_read',
  args = 'rules+<=10000 JSON arrays',
  returns = '{0, [1 if the rule was there else 0, ...]} in the order of the rules',
  source = 'AclControlManager.deleteAcls',
}, function(keys, params)
  local present, removed = acls.present(keys[1], params.rules), {}
  for at, rule in ipairs(params.rules) do
    if present[at] == 1 and rule ~= '' then
      removed[#removed + 1], removed[#removed + 2] = rule, ''
    end
  end
  security.write(keys[1], removed) -- first write
  return { code.NONE, present }
end)
