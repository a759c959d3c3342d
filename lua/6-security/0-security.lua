-- Users, access rules, quotas and tenants are tables of one shape: a hash that front-ends keep in memory. Its field
-- with the empty name has its version; each change raises it and publishes it on the key's channel. Front-ends read all
-- fields only if the version is new to them. A first version is a time, so none comes again after its key was
-- deleted or lost. Without a key it is 0.
local security = { MOST = 10000 }

-- The version of a table.
function security.version(key)
  return tonumber(redis.call('HGET', key, '') or 0) or 0
end

-- A table's reply to a caller that knows a version.
function security.read(key, known_version)
  local version = security.version(key)
  return { code.NONE, version, version ~= known_version and catalog.fields(key) or {} }
end

-- True if a table with more fields would have too many.
function security.exceeds(key, more)
  -- One field is the version.
  return more > 0 and redis.call('HLEN', key) + more > security.MOST + 1
end

-- Set fields to texts, delete fields with the text '', and publish the next version.
function security.write(key, changes)
  for at = 1, #changes, 2 do
    if changes[at + 1] == '' then
      redis.call('HDEL', key, changes[at]) -- first write
    else
      redis.call('HSET', key, changes[at], changes[at + 1])
    end
  end
  if #changes > 0 then
    local version = security.version(key)
    version = value.integer(version > 0 and version + 1 or clock.now_us())
    redis.call('HSET', key, '', version)
    redis.call('SPUBLISH', key, version)
  end
end

korvet.define({
  name = 'table_restore', flags = { 'allow-oom' },
  description = "write back a table that somebody deleted by hand, from a front-end's memory",
  keys = [[
    table hash as in users_read, acls_read, quotas_read, tenants_read
    witness string a key of the same unit that is there as long as the unit
  ]],
  args = [[
    secret the witness's text when the caller read the table
    fields+2<=20000 names and texts in turn
  ]],
  returns = '{0, 1 if it was written back, else 0}',
  notes = [[If the whole unit was deleted or lost, the witness is gone too, or is that of a later unit of the name, and
    the table stays away.]],
}, function(keys, params)
  local fields = params.fields
  if redis.call('EXISTS', keys[1]) == 1 or redis.call('GET', keys[2]) ~= params.secret then
    return { code.NONE, 0 }
  end
  security.write(keys[1], fields) -- first write
  return { code.NONE, 1 }
end)
