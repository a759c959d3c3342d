-- A group of consumers, by Kafka's classic protocol. Source: ClassicGroup, ClassicGroupState. If the hash has a type,
-- that is `consumer` or `share`: lua/4-consumer/0-consumer.lua describes the groups of the consumer protocol, and
-- share.lua beside it share groups. They lie in the same keys, and the functions of groups serve all of them.
--
-- The group hash:
-- * id and locator, the group's names; state, state_since; generation; protocol_type, protocol; leader.
-- * protocols: how many members support each. metadata_bytes: the bytes of all members' protocols.
-- * attempt: the number of the present or last rebalance. joined: the members that take part in it. synced: the members
--   that requested their assignment in this generation. assigned: the generation of the members' assignments.
-- * rebalance_timeout and session_timeout: the longest and the shortest of the members.
-- * join_deadline, sync_deadline; initial while a first rebalance waits for more members; next_due, no later than the
--   first deadline; retention; expires_at while the group is Empty.
-- * clock: the time of the last change. If the clock is before it, all times of the group move back as far.
-- * resumed: the end of the last outage that the deadlines count.
-- * size: the number of members. If the members hash has another one, somebody changed it by hand: all members go, and
--   join again.
-- * transactions: the number of open transactions that commit offsets of the group.
-- * catalog_version: while no client leads the group. It was of the consumer protocol and did not rebalance since. It
--   rebalances when the catalog has another version.
-- Times are ms since 1970, durations ms.
--
-- Deadlines are data. `group.advance` does the due work, on a table that collects all changes. Functions that write
-- have `group.save` write them; the others forget them.
--
-- The members hash: member id -> record. The sessions zset: member id -> the end of its session. An id that is missing
-- in the members hash was handed out and has yet to join. The static hash: instance id -> member id.
local group = {
  -- State -> the states before it. A group that is Dead has no keys.
  STATES = {
    Empty = { PreparingRebalance = true },
    PreparingRebalance = { Empty = true, CompletingRebalance = true, Stable = true },
    CompletingRebalance = { PreparingRebalance = true },
    Stable = { CompletingRebalance = true },
  },
  -- Fields of the group hash; true for numbers.
  FIELDS = {
    { 'state' }, { 'id' }, { 'locator' }, { 'protocol_type' }, { 'protocol' }, { 'leader' }, { 'protocols' },
    { 'initial' }, { 'generation', true }, { 'state_since', true }, { 'attempt', true }, { 'joined', true },
    { 'synced', true }, { 'assigned', true }, { 'rebalance_timeout', true }, { 'session_timeout', true },
    { 'join_deadline', true }, { 'sync_deadline', true }, { 'next_due', true }, { 'retention', true },
    { 'expires_at', true }, { 'transactions', true }, { 'type' }, { 'target_epoch', true }, { 'settled', true },
    { 'consumers', true }, { 'assignor' }, { 'catalog_version' }, { 'policy' }, { 'max_size', true },
    { 'metadata_bytes', true }, { 'clock', true }, { 'resumed', true }, { 'size', true },
  },
  -- The fields of every group, and the further ones of every group with a type.
  NEEDED = { 'state', 'id', 'locator', 'generation', 'state_since', 'retention' },
  NEEDED_WITH_TYPE = { 'target_epoch', 'settled', 'consumers' },
  -- The keys outlive expires_at by this time: only a backstop, as every function takes the group as gone by then.
  BACKSTOP = 86400000,
  KEYS = 5,
  -- Arguments of one command at most.
  BATCH = 1000,
  -- The members that one call describes, more or less; the bytes of members after which the page ends; the members that
  -- it reads at a time.
  PAGE = 200,
  PAGE_BYTES = 65536,
  STEP = 5,
  -- Bytes of all members' metadata, which one answer carries to the leader. Kafka's __consumer_offsets takes as many.
  METADATA_BYTES = 1048576,
  -- Bytes of members' subscriptions that a deletion of offsets decodes.
  MOST_SUBSCRIBED = 131072,
  -- A longer time in which Redis served nobody is an outage. Front-ends call every second.
  SILENCE = 2500,
  -- The session, after an outage, of an id that has yet to join a group without members: Kafka's shortest.
  SHORTEST_SESSION = 6000,
  -- The functions of the consumer protocol, from lua/4-consumer/0-consumer.lua on.
  consumer = {},
  -- The functions of share groups, from lua/4-consumer/share.lua on.
  share = {},
}

-- True if a group expired, by two of its fields. It does not expire while an open transaction holds offsets in it.
function group.has_expired(expires_at, transactions, now)
  return expires_at and tonumber(expires_at) <= now and tonumber(transactions or 0) == 0
end

-- True if somebody removed fields of a group's hash by hand.
function group.is_cut(fields)
  for _, name in ipairs(next(fields) and group.NEEDED or {}) do
    if fields[name] == nil then
      return true
    end
  end
  for _, name in ipairs(fields.type and group.NEEDED_WITH_TYPE or {}) do
    if fields[name] == nil then
      return true
    end
  end
  return fields.state == 'Empty' and fields.expires_at == nil and fields.type ~= 'share'
end

-- The group, read from its keys. An expired group is read as none, and `save` removes its remains. So is one with a
-- damaged hash.
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
    keys = keys, now = value.now_ms(), fields = fields, changed = {}, members = {}, written = {}, records = {},
    static = {}, deadlines = {}, further = {}, size = 0, pending = 0, was = fields.state,
  }
  if group.has_expired(fields.expires_at, fields.transactions, g.now) then
    g.fields, g.was, g.expired = {}, nil, true
  elseif group.is_cut(fields) then
    g.fields, g.was, g.is_cut = {}, nil, true
  elseif fields.state then
    g.size = redis.call('HLEN', keys[2])
    g.pending = redis.call('ZCARD', keys[3]) - g.size
    g.is_damaged = g.fields.size and g.fields.size ~= g.size
    group.turn_back(g)
    group.mend_sessions(g)
  end
  return g
end

-- Move all times of a group back if the clock went back.
function group.turn_back(g)
  local back = value.set_back_ms(g.fields.clock, g.now)
  if back == 0 then
    return
  end
  for _, name in ipairs({ 'state_since', 'join_deadline', 'sync_deadline', 'expires_at', 'resumed' }) do
    group.set(g, name, g.fields[name] and g.fields[name] - back)
  end
  local sessions = redis.call('ZRANGE', g.keys[3], 0, -1, 'WITHSCORES')
  for at = 1, #sessions, 2 do
    g.deadlines[sessions[at]] = sessions[at + 1] - back
  end
  if group.is_consumer(g) then
    group.consumer.turn_back(g, back)
  end
end

-- Begin sessions anew for members whose sessions were removed by hand, so that no dead member stays.
function group.mend_sessions(g)
  if g.pending >= 0 or g.is_damaged then
    return
  end
  for id, timeout in pairs(group.timeouts(g)) do
    if not redis.call('ZSCORE', g.keys[3], id) then
      group.renew(g, id, timeout)
    end
  end
  g.pending = 0
end

-- The group of a function that gets further keys beside the group's own.
function group.open_beside(keys)
  return group.open({ unpack(keys, 1, group.KEYS) })
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

-- True if the group speaks the consumer protocol.
function group.is_consumer(g)
  return g.fields.type == 'consumer'
end

function group.is_share(g)
  return g.fields.type == 'share'
end

-- True if the group has a target assignment and members with epochs: one of the consumer protocol, or a share group.
-- Source: ModernGroup
function group.is_modern(g)
  return g.fields.type ~= nil
end

-- The functions that pack, unpack and describe the members of a group's protocol.
function group.codec(g)
  return group.is_modern(g) and group.consumer or group
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

-- Make the group: it is Empty. If its hash was removed by hand, its other remains go, but the offsets stay. A key of
-- another type is an error.
function group.found(g, id, locator, retention)
  if not g.expired then
    local call, keys = redis.call, g.keys
    g.has_remains = call('HLEN', keys[2]) + call('ZCARD', keys[3]) + call('HLEN', keys[4]) > 0 or g.is_cut
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

-- A member as its record. The session timeout comes first, so that a heartbeat unpacks nothing else. The fields that a
-- rebalance reads of all members come next: to unpack the rest would take five times as long. The assignment comes
-- last, so that a new one replaces the end of the record.
group.HEAD = '>I4I4I4I4I4BI4c0I4'

function group.packed(member)
  local names = cmsgpack.pack(group.names(member.protocols))
  local rest = cmsgpack.pack({ member.instance_id, member.client_id, member.client_host, member.protocols })
  return struct.pack(
    group.HEAD, member.session_timeout, member.rebalance_timeout, member.attempt, member.synced, member.assigned,
    member.instance_id ~= '' and 1 or 0, #names, names, #rest
  ) .. rest .. member.assignment
end

function group.session_timeout(record)
  return (struct.unpack('>I4', record))
end

function group.unpacked(record)
  local session_timeout, rebalance_timeout, attempt, synced, assigned, _, _, size, at =
    struct.unpack(group.HEAD, record)
  local rest = cmsgpack.unpack(string.sub(record, at, at + size - 1))
  return {
    session_timeout = session_timeout, rebalance_timeout = rebalance_timeout, instance_id = rest[1],
    client_id = rest[2], client_host = rest[3], protocols = rest[4], attempt = attempt, synced = synced,
    assigned = assigned, assignment = string.sub(record, at + size),
  }
end

-- A record with the assignment of a generation.
function group.assigned_record(record, generation, assignment)
  local _, _, _, _, _, _, _, size, at = struct.unpack(group.HEAD, record)
  local before, behind = string.sub(record, 1, 16), string.sub(record, 21, at + size - 1)
  return before .. struct.pack('>I4', generation) .. behind .. assignment
end

-- Raise the error that says why a member's record was not read. Redis's own errors are tables.
function group.unreadable(g, id, problem)
  if type(problem) == 'table' then
    error(problem, 0)
  end
  value.unreadable(g.keys[2], id)
end

function group.member(g, id)
  local member = g.members[id]
  if member == nil and g.size > 0 and not g.is_complete then
    local record = redis.call('HGET', g.keys[2], id)
    member = false
    if record then
      local is_read, found = pcall(group.codec(g).unpacked, record)
      member = is_read and found or group.unreadable(g, id, found)
    end
    g.members[id] = member
  end
  return member or nil
end

-- Call a function for each member in turn: with its id and record, or with its id, nil and the member itself if this
-- call has read it and may have changed it.
function group.each(g, visit)
  local seen, added = {}, {}
  local records = g.size > 0 and not g.is_complete and redis.call('HGETALL', g.keys[2]) or {}
  local id
  local is_read, problem = pcall(function()
    for at = 1, #records, 2 do
      id = records[at]
      local member = g.members[id]
      if member == nil then
        visit(id, records[at + 1])
      else
        seen[id] = true
        if member then
          visit(id, nil, member)
        end
      end
    end
  end)
  if not is_read then
    group.unreadable(g, id, problem)
  end
  for other, member in pairs(g.members) do
    if member and not seen[other] then
      added[#added + 1] = other
    end
  end
  -- A Lua table has no order, and the reply needs one.
  table.sort(added)
  for _, new in ipairs(added) do
    visit(new, nil, g.members[new])
  end
end

-- The ids of all members, which this reads.
function group.member_ids(g)
  local ids, read = {}, {}
  local unpacked = group.codec(g).unpacked
  group.each(g, function(id, record, member)
    ids[#ids + 1] = id
    read[id] = member or unpacked(record)
  end)
  for id, member in pairs(read) do
    g.members[id] = member
  end
  g.is_complete = true
  return ids
end

-- Call a function for each member of a classic group with the head of its record: id, session_timeout,
-- rebalance_timeout, attempt, synced, assigned, 1 if it is static, its protocols' packed names.
function group.each_head(g, visit)
  group.each(g, function(id, record, member)
    if record then
      return visit(id, struct.unpack(group.HEAD, record))
    end
    local names = cmsgpack.pack(group.names(member.protocols))
    visit(id, member.session_timeout, member.rebalance_timeout, member.attempt, member.synced, member.assigned,
      member.instance_id ~= '' and 1 or 0, names)
  end)
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

-- Free the instance id of a member that goes, unless another member has it since.
function group.release_instance(g, id, member)
  if member.instance_id ~= '' and (group.static_member(g, member.instance_id) or id) == id then
    g.static[member.instance_id] = false
    g.static_changed = true
  end
end

-- Begin the session of a member anew, or of an id that has yet to join.
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

-- The bytes of the metadata of protocols.
function group.metadata_bytes(protocols)
  local bytes = 0
  for at = 2, #protocols, 2 do
    bytes = bytes + #protocols[at]
  end
  return bytes
end

-- Count a member's protocols in (1) or out (-1).
function group.count_protocols(g, member, step)
  local supporters = group.supporters(g)
  for at = 1, #member.protocols, 2 do
    local name = member.protocols[at]
    local count = (supporters[name] or 0) + step
    supporters[name] = count > 0 and count or nil
  end
  g.has_counted = true
  if g.fields.metadata_bytes then
    local bytes = g.fields.metadata_bytes + step * group.metadata_bytes(member.protocols)
    group.set(g, 'metadata_bytes', math.max(bytes, 0))
  end
end

-- True if all members support one of the protocols. Source: ClassicGroup.supportsProtocols
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

-- The code if a caller is not the member that it claims to be, else nil. Source: ClassicGroup.validateMember
function group.refusal(g, id, instance_id)
  if group.is_share(g) then
    return code.UNKNOWN_MEMBER_ID
  elseif instance_id ~= '' then
    local holder = group.static_member(g, instance_id)
    if not holder then
      return code.UNKNOWN_MEMBER_ID
    elseif holder ~= id then
      return code.FENCED_INSTANCE_ID
    end
  end
  return not group.member(g, id) and code.UNKNOWN_MEMBER_ID or nil
end

-- True if a member takes part in the present rebalance.
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
  group.release_instance(g, id, member)
  if g.fields.leader == id then
    group.set(g, 'leader', nil)
  end
  g.members[id] = false
  g.written[id] = true
  g.deadlines[id] = false
  g.size = g.size - 1
  g.announced = true
end
