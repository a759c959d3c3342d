-- What the members of a consumer group tell each other in the metadata and the assignments that the group carries.
-- Source: ConsumerProtocol, ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json

-- Numbers that are read at once: each is a value on Lua's stack.
group.INTS = 64

-- A number at a place of some data, and the place behind it; nil where the data ends before.
function group.number_at(data, at, format, size)
  if #data < at + size - 1 then
    return nil
  end
  return (struct.unpack(format, data, at)), at + size
end

-- How many elements an array at a place of some data has, and the place behind the number; nil where it is none.
function group.count_at(data, at)
  local count, from = group.number_at(data, at, '>i4', 4)
  if not count or count < 0 then
    return nil
  end
  return count, from
end

-- A topic's name at a place of some data, and the place behind it; nil where there is none.
function group.name_at(data, at)
  local length, from = group.number_at(data, at, '>h', 2)
  if not length or length < 0 or #data < from + length - 1 then
    return nil
  end
  return string.sub(data, from, from + length - 1), from + length
end

-- An array at a place of some data, each element of which a function reads: the elements, and the place behind them;
-- nil where there is none.
function group.list_at(data, at, element_at)
  local list, count, from = {}, group.count_at(data, at)
  for place = 1, count or 0 do
    list[place], from = element_at(data, from)
    if not from then
      return nil
    end
  end
  return count and list, from
end

-- An array of numbers, of which many are read at once.
function group.ints_at(data, at)
  local count, from = group.count_at(data, at)
  if not count or #data < from + 4 * count - 1 then
    return nil
  end
  local list = {}
  for first = 1, count, group.INTS do
    local some = { struct.unpack('>' .. string.rep('i4', math.min(group.INTS, count - first + 1)), data, from) }
    -- The last one is the place behind them.
    from = table.remove(some)
    if first == 1 then
      list = some
    else
      for place, number in ipairs(some) do
        list[first + place - 1] = number
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

-- The topics of a ConsumerProtocolSubscription, of any version; nil where it is not one.
function group.subscription(metadata)
  return (group.names_at(metadata, 3))
end

-- The places, `topic:partition`, of a ConsumerProtocolAssignment, of any version; nil where it is not one.
function group.assigned_places(assignment)
  local named, places = group.all_named_at(assignment, 3), {}
  for _, one in ipairs(named or {}) do
    local prefix = one[1] .. ':'
    for _, partition in ipairs(one[2]) do
      places[#places + 1] = prefix .. partition
    end
  end
  return named and places
end
