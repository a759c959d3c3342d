-- One command over many arguments in batches, from the `begin`-th on or all of them.
function group.in_batches(command, key, arguments, begin)
  for first = begin or 1, #arguments, group.BATCH do
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
  group.save_hash(g.keys[2], g.records)
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
  local changes = g.further
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

-- The first deadline of the sessions, the rebalance and the sync; nil if there is none.
function group.first_deadline(g)
  local first = redis.call('ZRANGE', g.keys[3], 0, 0, 'WITHSCORES')[2]
  local due = first and math.ceil(tonumber(first)) or math.huge
  due = math.min(due, g.fields.join_deadline or math.huge, g.fields.sync_deadline or math.huge)
  return due < math.huge and due or nil
end

-- Have Redis expire the keys of an Empty group without open transactions, some time after the group expires. The keys
-- of other groups stay, and those of share groups.
function group.save_expiry(g)
  local is_held = (g.fields.transactions or 0) > 0
  if group.is(g, 'Empty') and g.fields.expires_at and not is_held then
    for _, key in ipairs(g.keys) do
      redis.call('PEXPIREAT', key, value.integer(g.fields.expires_at + group.BACKSTOP))
    end
  elseif g.was == 'Empty' or is_held and group.is(g, 'Empty') then
    for _, key in ipairs(g.keys) do
      redis.call('PERSIST', key)
    end
  end
end

-- Write all changes, offsets first, and wake parked members. The offsets are partition, position, ... from the
-- `begin`-th element on.
function group.save(g, offsets, begin)
  if g.expired then
    redis.call('UNLINK', unpack(g.keys)) -- first write
  elseif g.has_remains or g.is_deserted then
    redis.call('UNLINK', g.keys[2], g.keys[3], g.keys[4], g.is_cut and g.keys[1] or g.keys[4])
  end
  if not group.exists(g) then
    return
  end
  if offsets then
    group.in_batches('HSET', g.keys[5], offsets, begin)
  end
  if g.has_counted then
    local supporters = group.supporters(g)
    group.set(g, 'protocols', next(supporters) and cmsgpack.pack(supporters) or nil)
  end
  group.save_members(g)
  group.save_sessions(g)
  group.set(g, 'next_due', group.first_deadline(g))
  group.set(g, 'clock', g.now)
  group.set(g, 'size', g.size)
  group.save_fields(g)
  group.save_expiry(g)
  if g.announced then
    redis.call('SPUBLISH', g.keys[1], g.fields.state .. ' ' .. value.integer(g.fields.generation))
  end
end
