-- Versions of users, access rules, quotas and tenants. Front-ends ask for all of them only if the version is not the
-- known one. A first version is a time, so none comes again after its key was deleted or lost. Without a key it is 0.
local security = {}

-- The version of a hash, which its field of the empty name has.
function security.version(key)
  return tonumber(redis.call('HGET', key, '') or 0)
end

-- Give a hash its next version, and tell it on the key's channel.
function security.publish(key)
  redis.call('HSETNX', key, '', value.integer(clock.now_us()))
  redis.call('SPUBLISH', key, value.integer(redis.call('HINCRBY', key, '', 1)))
end
