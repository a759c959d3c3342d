-- Calls of Redis that name the key which holds the wrong kind of value. Redis's own error does not. The catalog calls
-- these, and from lua/3-groups on all code. The functions of the log call Redis directly, because they are called most,
-- and a front-end looks at the keys of a damaged partition itself.
local calls = {}

function calls.call(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, '^WRONGTYPE') then
      reply.err = 'WRONGTYPE Operation against ' .. key .. ', which holds the wrong kind of value'
    end
    error(reply, 0)
  end
  return reply
end

function calls.pcall(...)
  return redis.pcall(...)
end

function calls.sha1hex(text)
  return redis.sha1hex(text)
end

function calls.acl_check_cmd(...)
  return redis.acl_check_cmd(...)
end
