-- The metadata and the assignments that members of a consumer group send each other.
-- Source: ConsumerProtocol, ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json

-- The numbers that are read at once: each is a value on Lua's stack.
group.INTS = 64
-- The bytes of members' metadata and assignments that a description decodes in one call.
group.SHOWN = 65536

-- A number at an index of some data, and the index after it; nil if the data ends before.
function group.number_at(data, at, format, size)
  if #data < at + size - 1 then
    return nil
  end
  return (struct.unpack(format, data, at)), at + size
end

-- The number of elements of an array at an index of some data, and the index after it; nil if it is malformed.
function group.count_at(data, at)
  local count, from = group.number_at(data, at, '>i4', 4)
  if not count or count < 0 then
    return nil
  end
  return count, from
end

-- A topic's name at an index of some data, and the index after it; nil if it is malformed.
function group.name_at(data, at)
  local length, from = group.number_at(data, at, '>h', 2)
  if not length or length < 0 or #data < from + length - 1 then
    return nil
  end
  return string.sub(data, from, from + length - 1), from + length
end

-- The elements of an array at an index of some data, each read by a function, and the index after them; nil if it is
-- malformed.
function group.list_at(data, at, element_at)
  local list, count, from = {}, group.count_at(data, at)
  for number = 1, count or 0 do
    list[number], from = element_at(data, from)
    if not from then
      return nil
    end
  end
  return count and list, from
end

-- An array of numbers at an index of some data, many read at once.
function group.ints_at(data, at)
  local count, from = group.count_at(data, at)
  if not count or #data < from + 4 * count - 1 then
    return nil
  end
  local list = {}
  for first = 1, count, group.INTS do
    local some = { struct.unpack('>' .. string.rep('i4', math.min(group.INTS, count - first + 1)), data, from) }
    -- The last one is the index after them.
    from = table.remove(some)
    if first == 1 then
      list = some
    else
      for offset, number in ipairs(some) do
        list[first + offset - 1] = number
      end
    end
  end
  return list, from
end

-- A topic and its partitions: {name, partitions}.
function group.named_at(data, at)
  local name, from = group.name_at(data, at)
  local partitions
  if name then
    partitions, from = group.ints_at(data, from)
  end
  return partitions and { name, partitions }, partitions and from
end

function group.names_at(data, at)
  return group.list_at(data, at, group.name_at)
end

-- Topics and their partitions: [{name, partitions}, ...].
function group.all_named_at(data, at)
  return group.list_at(data, at, group.named_at)
end

-- The topics of a ConsumerProtocolSubscription of any version; nil if the bytes are none.
function group.subscription(metadata)
  return (group.names_at(metadata, 3))
end

-- The result of a function that decodes a member's bytes for a description; {} beyond the bytes of one call.
function group.shown(g, decode, bytes)
  g.shown = (g.shown or 0) + #bytes
  return g.shown <= group.SHOWN and decode(bytes) or {}
end

-- The partitions, `topic:partition`, of a ConsumerProtocolAssignment of any version; nil if the bytes are none.
function group.assigned_partitions(assignment)
  local named, partitions = group.all_named_at(assignment, 3), {}
  for _, one in ipairs(named or {}) do
    local prefix = one[1] .. ':'
    for _, index in ipairs(one[2]) do
      partitions[#partitions + 1] = prefix .. index
    end
  end
  return named and partitions
end
