-- A group of consumers, by Kafka's classic protocol. Source: ClassicGroup, ClassicGroupState. Where the hash has
-- a type, it is `consumer`: a group of the consumer protocol, which lua/60_consumer.lua tells of. It lies in the same
-- keys, and the functions of groups serve both.
--
-- The group hash: id and locator, its names; state, state_since; generation; protocol_type, protocol; leader;
-- protocols, how many members support each; attempt, the number of the present or last rebalance; joined, members
-- that take part in it; synced, members that asked for their assignment in this generation; assigned, the generation
-- that the members' assignments are of; rebalance_timeout and session_timeout, the longest and the shortest of the
-- members; join_deadline, sync_deadline, and initial while a first rebalance waits for more members; next_due, no later
-- than the first deadline; retention; expires_at while it is Empty; transactions, the number of open ones that commit
-- offsets of the group. Times are ms since 1970, durations ms. And catalog_version while no client leads the
-- group, which was of the consumer protocol and did not rebalance since: it does where its topics may be others.
--
-- Deadlines are data. `group.advance` does what became due; functions that write keep what it did, the others forget
-- it. Both work on a table that collects all changes, which `group.save` writes.
--
-- The members hash: member id -> record. The sessions zset: member id -> time at which it is given up; an id that is
-- not in the members hash was handed out and is yet to join. The static hash: instance id -> member id.
local group = {
  -- State -> the states before it. A group that is Dead has no keys.
  STATES = {
    Empty = { PreparingRebalance = true },
    PreparingRebalance = { Empty = true, CompletingRebalance = true, Stable = true },
    CompletingRebalance = { PreparingRebalance = true },
    Stable = { CompletingRebalance = true },
  },
  -- Fields of the group hash, and whether they are numbers.
  FIELDS = {
    { 'state' }, { 'id' }, { 'locator' }, { 'protocol_type' }, { 'protocol' }, { 'leader' }, { 'protocols' },
    { 'initial' }, { 'generation', true }, { 'state_since', true }, { 'attempt', true }, { 'joined', true },
    { 'synced', true }, { 'assigned', true }, { 'rebalance_timeout', true }, { 'session_timeout', true },
    { 'join_deadline', true }, { 'sync_deadline', true }, { 'next_due', true }, { 'retention', true },
    { 'expires_at', true }, { 'transactions', true }, { 'type' }, { 'target_epoch', true }, { 'settled', true },
    { 'consumers', true }, { 'assignor' }, { 'catalog_version' }, { 'policy' }, { 'max_size', true },
  },
  -- How long the keys outlive expires_at: only a backstop, for the group is gone by then to everyone who asks.
  BACKSTOP = 86400000,
  KEYS = 5,
  -- Arguments, and keys beside the group's, of each function.
  USAGE = {
    join = { 'outages id locator member_id new_member_id instance_id client_id client_host session_timeout '
      .. 'rebalance_timeout protocol_type version min_session_timeout max_session_timeout max_size initial_delay '
      .. 'retention [protocol metadata ...]' },
    await = { 'outages member_id instance_id [member_id instance_id ...]' },
    sync = { 'outages member_id instance_id generation names_protocol protocol_type protocol '
      .. '[member_id assignment ...]' },
    await_sync = { 'outages generation member_id instance_id [member_id instance_id ...]' },
    heartbeat = { 'outages member_id instance_id generation [catalog_version]' },
    leave = { 'outages member_id instance_id [member_id instance_id ...]' },
    commit = { 'outages id locator member_id instance_id generation version retention '
      .. '[topic:partition position ...]' },
    fetch = { '[topic:partition ...]' },
    offset_delete = { 'outages [topic:partition ...]' },
    offset_forget = { '[topic:partition topic_id ...]' },
    describe = { '[outages [topic:partition ...]]', ' [meta ...]' },
    state = { '[outages]' },
  },
  -- Arguments of one command at most.
  BATCH = 1000,
  -- Redis was away where nobody was served for longer than this. Front-ends ask every second.
  SILENCE = 2500,
  -- The session of an id that is yet to join a group without members, after an outage: the shortest that Kafka allows.
  SHORTEST_SESSION = 6000,
  -- What groups of the consumer protocol do, from lua/60_consumer.lua on.
  consumer = {},
}

-- An error that says how a function is called, where it was called with another number of keys or arguments. It takes
-- `least` arguments, and any number of further ones `step` at a time; and as many keys beside the group's as `further`.
function group.expect(keys, args, name, least, step, further)
  local rest = #args - least
  if #keys ~= group.KEYS + (further or 0) or rest < 0 or rest > 0 and (not step or rest % step > 0) then
    local usage = group.USAGE[name]
    error(string.format(
      'korvet_group_%s takes KEYS group members sessions static offsets%s ARGV %s; these were %d keys and %d arguments',
      name, usage[2] or '', usage[1], #keys, #args
    ), 0)
  end
end

-- Whether a group is gone, by two of its fields: none is that an open transaction holds offsets for.
function group.has_expired(expires_at, transactions, now)
  return expires_at and tonumber(expires_at) <= now and tonumber(transactions or 0) == 0
end

-- The group's state, read from its keys. A group that expired is read as none, whose remains `save` removes.
function group.open(keys)
  local names = {}
  for at, field in ipairs(group.FIELDS) do
    names[at] = field[1]
  end
  local values = redis.call('HMGET', keys[1], unpack(names))
  local fields = {}
  for at, field in ipairs(group.FIELDS) do
    fields[field[1]] = values[at] and (field[2] and tonumber(values[at]) or values[at]) or nil
  end
  local g = {
    keys = keys, now = value.now_ms(), fields = fields, changed = {}, members = {}, written = {}, static = {},
    deadlines = {}, places = {}, size = 0, pending = 0, was = fields.state,
  }
  if group.has_expired(fields.expires_at, fields.transactions, g.now) then
    g.fields, g.was, g.expired = {}, nil, true
  elseif fields.state then
    g.size = redis.call('HLEN', keys[2])
    g.pending = redis.call('ZCARD', keys[3]) - g.size
  end
  return g
end

function group.exists(g)
  return g.fields.state ~= nil
end

function group.set(g, name, new)
  if g.fields[name] ~= new then
    g.fields[name] = new
    g.changed[name] = true
  end
end

-- Whether the group speaks the consumer protocol.
function group.is_consumer(g)
  return g.fields.type == 'consumer'
end

-- Who packs and unpacks the members' records.
function group.codec(g)
  return group.is_consumer(g) and group.consumer or group
end

function group.is(g, state)
  return g.fields.state == state
end

function group.move(g, state)
  local before = g.fields.state
  if before and not group.STATES[state][before] then
    error('a group cannot become ' .. state .. ' from ' .. before, 0)
  end
  group.set(g, 'state', state)
  group.set(g, 'state_since', g.now)
  g.announced = true
end

-- Make the group: it is Empty. What is left of one whose hash somebody removed goes, but its offsets; a key of another
-- type is an error.
function group.found(g, id, locator, retention)
  if not g.expired then
    local call, keys = redis.call, g.keys
    g.has_remains = call('HLEN', keys[2]) + call('ZCARD', keys[3]) + call('HLEN', keys[4]) > 0
    call('HLEN', keys[5])
  end
  g.is_new, g.is_complete = true, true
  group.set(g, 'id', id)
  group.set(g, 'locator', locator)
  group.set(g, 'generation', 0)
  group.set(g, 'state', 'Empty')
  group.set(g, 'state_since', g.now)
  group.set(g, 'retention', retention)
  group.set(g, 'expires_at', g.now + retention)
end

-- A member as its record. The session timeout comes first, so that a heartbeat need not unpack the rest.
function group.packed(member)
  return struct.pack('>I4', member.session_timeout) .. cmsgpack.pack({
    member.rebalance_timeout, member.instance_id, member.client_id, member.client_host, member.protocols,
    member.attempt, member.synced, member.assigned, member.assignment,
  })
end

function group.session_timeout(record)
  return (struct.unpack('>I4', record))
end

function group.unpacked(record)
  local rest = cmsgpack.unpack(string.sub(record, 5))
  return {
    session_timeout = group.session_timeout(record), rebalance_timeout = rest[1], instance_id = rest[2],
    client_id = rest[3], client_host = rest[4], protocols = rest[5], attempt = rest[6], synced = rest[7],
    assigned = rest[8], assignment = rest[9],
  }
end

function group.member(g, id)
  local member = g.members[id]
  if member == nil and g.size > 0 and not g.is_complete then
    local record = redis.call('HGET', g.keys[2], id)
    member = record and group.codec(g).unpacked(record) or false
    g.members[id] = member
  end
  return member or nil
end

-- The ids of all members; reads them all, so only where a rebalance is completed, or something failed.
function group.member_ids(g)
  local ids, seen = {}, {}
  local records = g.size > 0 and not g.is_complete and redis.call('HGETALL', g.keys[2]) or {}
  for at = 1, #records, 2 do
    if g.members[records[at]] == nil then
      g.members[records[at]] = group.codec(g).unpacked(records[at + 1])
    end
    if g.members[records[at]] then
      ids[#ids + 1] = records[at]
    end
    seen[records[at]] = true
  end
  local added = {}
  for id, member in pairs(g.members) do
    if member and not seen[id] then
      added[#added + 1] = id
    end
  end
  -- The order of a Lua table is not known, and that of the reply should be.
  table.sort(added)
  for _, id in ipairs(added) do
    ids[#ids + 1] = id
  end
  g.is_complete = true
  return ids
end

function group.put(g, id, member)
  if not group.member(g, id) then
    g.size = g.size + 1
  end
  g.members[id] = member
  g.written[id] = true
end

function group.static_member(g, instance_id)
  local id = g.static[instance_id]
  if id == nil and group.exists(g) and not g.is_new then
    id = redis.call('HGET', g.keys[4], instance_id)
    g.static[instance_id] = id
  end
  return id or nil
end

-- The session of a member, or of an id that is yet to join, ends at a time.
function group.renew(g, id, timeout)
  g.deadlines[id] = g.now + timeout
end

function group.is_pending(g, id)
  if g.pending == 0 or group.member(g, id) then
    return false
  end
  local deadline = g.deadlines[id]
  if deadline == nil then
    deadline = redis.call('ZSCORE', g.keys[3], id)
  end
  return deadline and true or false
end

-- How many members support each protocol.
function group.supporters(g)
  if not g.supporters then
    g.supporters = g.fields.protocols and cmsgpack.unpack(g.fields.protocols) or {}
  end
  return g.supporters
end

-- Count a member's protocols in (1) or out (-1).
function group.count_protocols(g, member, step)
  local supporters = group.supporters(g)
  for at = 1, #member.protocols, 2 do
    local name = member.protocols[at]
    local count = (supporters[name] or 0) + step
    supporters[name] = count > 0 and count or nil
  end
  group.set(g, 'protocols', next(supporters) and cmsgpack.pack(supporters) or nil)
end

-- Whether one of the protocols is supported by all members. Source: ClassicGroup.supportsProtocols
function group.supports(g, protocol_type, protocols)
  if not group.exists(g) or group.is(g, 'Empty') then
    return protocol_type ~= '' and #protocols > 0
  end
  local supporters = group.supporters(g)
  for at = 1, protocol_type == g.fields.protocol_type and #protocols or 0, 2 do
    if (supporters[protocols[at]] or 0) == g.size then
      return true
    end
  end
  return false
end

-- Why a caller is not the member that it says it is; nil when it is. Source: ClassicGroup.validateMember
function group.refusal(g, id, instance_id)
  if instance_id ~= '' then
    local holder = group.static_member(g, instance_id)
    if not holder then
      return code.UNKNOWN_MEMBER_ID
    elseif holder ~= id then
      return code.FENCED_INSTANCE_ID
    end
  end
  return not group.member(g, id) and code.UNKNOWN_MEMBER_ID or nil
end

-- Whether a member takes part in the rebalance that is going on.
function group.has_joined(g, member)
  return group.is(g, 'PreparingRebalance') and member.attempt == g.fields.attempt
end

function group.remove_pending(g, id)
  g.deadlines[id] = false
  g.pending = g.pending - 1
end

-- Take a member out. Source: ClassicGroup.remove
function group.remove(g, id)
  local member = group.member(g, id)
  group.count_protocols(g, member, -1)
  if group.has_joined(g, member) then
    group.set(g, 'joined', g.fields.joined - 1)
  end
  if member.synced == g.fields.generation and g.fields.synced then
    group.set(g, 'synced', g.fields.synced - 1)
  end
  if member.instance_id ~= '' then
    g.static[member.instance_id] = false
    g.static_changed = true
  end
  if g.fields.leader == id then
    group.set(g, 'leader', nil)
  end
  g.members[id] = false
  g.written[id] = true
  g.deadlines[id] = false
  g.size = g.size - 1
  g.announced = true
end
