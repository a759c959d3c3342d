-- What the members of a consumer group tell each other in the metadata and the assignments that the group carries.
-- Source: ConsumerProtocol, ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json

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

-- The topics of a ConsumerProtocolSubscription, of any version; nil where it is not one.
function group.subscription(metadata)
  local topics = {}
  local count, at = group.count_at(metadata, 3)
  for _ = 1, count or 0 do
    topics[#topics + 1], at = group.name_at(metadata, at)
    if not at then
      return nil
    end
  end
  return count and topics
end

-- The places, `topic:partition`, of a ConsumerProtocolAssignment, of any version; nil where it is not one.
function group.assigned_places(assignment)
  local places = {}
  local count, at = group.count_at(assignment, 3)
  for _ = 1, count or 0 do
    local name, partitions, partition
    name, at = group.name_at(assignment, at)
    if not name then
      return nil
    end
    partitions, at = group.count_at(assignment, at)
    if not partitions then
      return nil
    end
    for _ = 1, partitions do
      partition, at = group.number_at(assignment, at, '>i4', 4)
      if not partition then
        return nil
      end
      places[#places + 1] = name .. ':' .. partition
    end
  end
  return count and places
end
