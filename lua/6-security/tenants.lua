-- Tenants: the namespaces that clients may choose by a server name or a login. They are a unit of their own, beside all
-- namespaces. Front-ends keep all of them in memory. A version grows with each change; the key's channel carries it.
--
-- A tenant is the text of a JSON object {"id", "state", "created_ms", "limits": {name: number}, "super_users"}. Its
-- field is the namespace's name; the field of the empty name has the version. The id distinguishes a tenant from a
-- later one of the same name. States: active, suspended (nobody gets in), deleting (its keys are being removed).
local tenants = { LONGEST = 40, MOST_BYTES = 4096 }

-- True if a name can be a label of a host name, with a node's label before it.
function tenants.is_name(name)
  return #name <= tenants.LONGEST and string.find(name, '^[a-z0-9][a-z0-9-]*$') and string.sub(name, -1) ~= '-'
end

-- True if a value is a table {name: number} of limits.
function tenants.are_limits(limits)
  if type(limits) ~= 'table' then
    return false
  end
  for name, number in pairs(limits) do
    local is_number = type(number) == 'number' and number >= 0 and number < 2 ^ 53 and number % 1 == 0
    if type(name) ~= 'string' or not is_number then
      return false
    end
  end
  return true
end

-- The text of a tenant. Limits are written by hand, because cjson writes large numbers with an exponent.
function tenants.text_of(tenant)
  local limits = {}
  for name, number in pairs(tenant.limits) do
    limits[#limits + 1] = cjson.encode(name) .. ':' .. value.integer(number)
  end
  table.sort(limits)
  return '{"id":' .. cjson.encode(tenant.id) .. ',"state":' .. cjson.encode(tenant.state) .. ',"created_ms":'
    .. value.integer(tenant.created_ms) .. ',"limits":{' .. table.concat(limits, ',') .. '},"super_users":'
    .. cjson.encode(tenant.super_users) .. '}'
end

function tenants.found(key, name)
  local text = name ~= '' and redis.call('HGET', key, name)
  return text and value.decoded(text, key, name)
end

korvet.define({
  name = 'tenants_read', flags = { 'no-writes', 'allow-oom' },
  description = 'all tenants, or only their version if the caller knows that version',
  keys = "tenants hash name -> tenant as JSON, '' -> version",
  args = 'known_version:int a version, or -1',
  returns = '{0, version, [name, tenant, ...]}; no tenants when known_version is the version',
  bound = '10000 tenants',
}, function(keys, params)
  return security.read(keys[1], params.known_version)
end)

korvet.define({
  name = 'tenant_create',
  description = 'add a tenant, which is active then',
  keys = 'tenants hash as in tenants_read',
  args = [[
    name of its namespace: at most 40 of a-z, 0-9 and '-', which neither begins nor ends it
    id told apart from a former tenant of the name by it   limits JSON {name: number}   super_users Kafka's list, or ''
  ]],
  returns = "{code, tenant as JSON or ''}; the existing one with DUPLICATE_RESOURCE",
  codes = [[DUPLICATE_RESOURCE, INVALID_REQUEST (the name or the limits are none), POLICY_VIOLATION (there are 10000, or
    this one is longer than 4096 bytes)]],
}, function(keys, params)
  local is_json, limits = pcall(cjson.decode, params.limits)
  if not tenants.is_name(params.name) or not is_json or not tenants.are_limits(limits) then
    return { code.INVALID_REQUEST, '' }
  end
  local existing = redis.call('HGET', keys[1], params.name)
  if existing then
    return { code.DUPLICATE_RESOURCE, existing }
  end
  local text = tenants.text_of{
    id = params.id, state = 'active', created_ms = value.now_ms(), limits = limits, super_users = params.super_users,
  }
  if #text > tenants.MOST_BYTES or security.exceeds(keys[1], 1) then
    return { code.POLICY_VIOLATION, '' }
  end
  security.write(keys[1], { params.name, text }) -- first write
  return { code.NONE, text }
end)

korvet.define({
  name = 'tenant_configure',
  description = 'replace some limits of a tenant, and its super users',
  keys = 'tenants hash as in tenants_read',
  args = [[
    name   limits JSON {name: number}; -1 removes a limit   super_users? Kafka's list, or ''; without it they stay
  ]],
  returns = "{code, tenant as JSON or ''}",
  codes = [[RESOURCE_NOT_FOUND (there is none, or it is being deleted), INVALID_REQUEST (the limits are none),
    POLICY_VIOLATION (it would be longer than 4096 bytes)]],
}, function(keys, params)
  local is_json, change = pcall(cjson.decode, params.limits)
  local tenant = tenants.found(keys[1], params.name)
  if not tenant or tenant.state == 'deleting' then
    return { code.RESOURCE_NOT_FOUND, '' }
  elseif not is_json or type(change) ~= 'table' then
    return { code.INVALID_REQUEST, '' }
  end
  for name, number in pairs(change) do
    tenant.limits[name] = number
    if number == -1 then
      tenant.limits[name] = nil
    end
  end
  tenant.super_users = params.super_users or tenant.super_users
  if not tenants.are_limits(tenant.limits) then
    return { code.INVALID_REQUEST, '' }
  end
  local text = tenants.text_of(tenant)
  if #text > tenants.MOST_BYTES then
    return { code.POLICY_VIOLATION, '' }
  end
  security.write(keys[1], { params.name, text }) -- first write
  return { code.NONE, text }
end)

korvet.define({
  name = 'tenant_switch', flags = { 'allow-oom' },
  description = 'suspend a tenant, let it go on, or begin its deletion; repeatable',
  keys = 'tenants hash as in tenants_read',
  args = [[
    name   state:active|suspended|deleting a tenant that is being deleted stays so
    id? of the only tenant to switch: the name may be a later one's
  ]],
  returns = "{code, id or ''}",
  codes = 'RESOURCE_NOT_FOUND, INVALID_REQUEST (it is being deleted)',
}, function(keys, params)
  local tenant = tenants.found(keys[1], params.name)
  if not tenant or tenant.id ~= (params.id or tenant.id) then
    return { code.RESOURCE_NOT_FOUND, '' }
  elseif tenant.state == params.state then
    return { code.NONE, tenant.id }
  elseif tenant.state == 'deleting' then
    return { code.INVALID_REQUEST, tenant.id }
  end
  tenant.state = params.state
  security.write(keys[1], { params.name, tenants.text_of(tenant) }) -- first write
  return { code.NONE, tenant.id }
end)

korvet.define({
  name = 'tenant_forget', flags = { 'allow-oom' },
  description = 'end the deletion of a tenant whose keys are gone; repeatable',
  keys = 'tenants hash as in tenants_read',
  args = 'name   id',
  returns = '{code}',
  codes = 'INVALID_REQUEST (its deletion has not begun)',
}, function(keys, params)
  local tenant = tenants.found(keys[1], params.name)
  if tenant and tenant.id == params.id then
    if tenant.state ~= 'deleting' then
      return { code.INVALID_REQUEST }
    end
    security.write(keys[1], { params.name, '' }) -- first write
  end
  return { code.NONE }
end)
