-- One command over many arguments, in batches.
function group.in_batches(command, key, arguments)
  for first = 1, #arguments, group.BATCH do
    redis.call(command, key, unpack(arguments, first, math.min(first + group.BATCH - 1, #arguments)))
  end
end

-- Write the changes of a hash: name -> new value, or false for one to be removed.
function group.save_hash(key, changes, packed)
  local set, removed = {}, {}
  for name, new in pairs(changes) do
    if new then
      set[#set + 1] = name
      set[#set + 1] = packed and packed(new) or new
    else
      removed[#removed + 1] = name
    end
  end
  group.in_batches('HSET', key, set)
  group.in_batches('HDEL', key, removed)
end

function group.save_members(g)
  local changes = {}
  for id in pairs(g.written) do
    changes[id] = g.members[id]
  end
  group.save_hash(g.keys[2], changes, group.codec(g).packed)
  if g.static_changed then
    group.save_hash(g.keys[4], g.static)
  end
end

function group.save_sessions(g)
  local set, removed = {}, {}
  for id, deadline in pairs(g.deadlines) do
    if deadline then
      set[#set + 1] = deadline
      set[#set + 1] = id
    else
      removed[#removed + 1] = id
    end
  end
  group.in_batches('ZADD', g.keys[3], set)
  group.in_batches('ZREM', g.keys[3], removed)
end

-- A hash that is rewritten has only the fields that a classic group may have.
function group.save_fields(g)
  local changes = g.places
  if g.is_rewritten then
    redis.call('UNLINK', g.keys[1])
    changes, g.changed = {}, g.fields
  end
  for name in pairs(g.changed) do
    local new = g.fields[name]
    changes[name] = type(new) == 'number' and value.integer(new) or new or false
  end
  group.save_hash(g.keys[1], changes)
end

-- The first deadline: of a session, of the rebalance, of the sync; nil when nothing is going to happen.
function group.first_deadline(g)
  local first = redis.call('ZRANGE', g.keys[3], 0, 0, 'WITHSCORES')[2]
  local due = first and math.ceil(tonumber(first)) or math.huge
  due = math.min(due, g.fields.join_deadline or math.huge, g.fields.sync_deadline or math.huge)
  return due < math.huge and due or nil
end

-- The keys of a group that is not Empty, or has open transactions, stay; the others go some time after the group has
-- expired.
function group.save_expiry(g)
  local is_held = (g.fields.transactions or 0) > 0
  if group.is(g, 'Empty') and not is_held then
    for _, key in ipairs(g.keys) do
      redis.call('PEXPIREAT', key, value.integer(g.fields.expires_at + group.BACKSTOP))
    end
  elseif g.was == 'Empty' or is_held and group.is(g, 'Empty') then
    for _, key in ipairs(g.keys) do
      redis.call('PERSIST', key)
    end
  end
end

-- Write what was changed, offsets first, and tell those who wait; offsets are place, position, ...
function group.save(g, offsets)
  if g.expired then
    redis.call('UNLINK', unpack(g.keys)) -- first write
  elseif g.has_remains then
    redis.call('UNLINK', g.keys[2], g.keys[3], g.keys[4])
  end
  if not group.exists(g) then
    return
  end
  if offsets then
    group.in_batches('HSET', g.keys[5], offsets)
  end
  group.save_members(g)
  group.save_sessions(g)
  group.set(g, 'next_due', group.first_deadline(g))
  group.save_fields(g)
  group.save_expiry(g)
  if g.announced then
    redis.call('SPUBLISH', g.keys[1], g.fields.state .. ' ' .. value.integer(g.fields.generation))
  end
end
