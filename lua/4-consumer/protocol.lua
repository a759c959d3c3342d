-- The subscriptions and assignments of classic members. Topics have names in them, and ids everywhere else in a
-- consumer group.
-- Source: ConsumerProtocol, ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json

-- The newest version of both messages. Later versions are read as this one.
consumer.EMBEDDED = 3
-- The bytes of all members that a change of protocol decodes; no group of Kafka's has more (max.message.bytes).
consumer.MOST_READ = 1048576

-- Each of these reads a value at an index of some data: the value, and the index after it; nil if there is none.
function consumer.int_at(data, at)
  return group.number_at(data, at, '>i4', 4)
end

-- A text with its length before it; '' if it is null. Kafka takes any negative length as null.
function consumer.text_at(data, at, format, size)
  local length, from = group.number_at(data, at, format, size)
  if not length or #data < from + length - 1 then
    return nil
  end
  length = math.max(length, 0)
  return string.sub(data, from, from + length - 1), from + length
end

function consumer.string_at(data, at)
  return consumer.text_at(data, at, '>h', 2)
end

function consumer.bytes_at(data, at)
  return consumer.text_at(data, at, '>i4', 4)
end

-- Names in order, each once.
function consumer.names_at(data, at)
  local names, from = group.names_at(data, at)
  return names and consumer.names(names, 1), from
end

-- The result of a function that decodes bytes at an index. The table `memory` has the last bytes and their result, so
-- equal bytes are decoded once: members of a group mostly want the same topics, and own what they were assigned. nil if
-- all decoded bytes are too many.
function consumer.remembered(memory, element_at, data, at)
  local size = #(memory.bytes or '')
  if size > 0 and string.sub(data, at, at + size - 1) == memory.bytes then
    return memory.read, at + size
  end
  memory.left = memory.left - #data
  if memory.left < 0 then
    return nil
  end
  local read, from = element_at(data, at)
  if from then
    memory.bytes, memory.read = string.sub(data, at, from - 1), read
  end
  return read, from
end

-- The memories for the decoding of many members' subscriptions and assignments.
function consumer.memories()
  return { topics = { left = consumer.MOST_READ }, owned = { left = consumer.MOST_READ } }
end

-- The fields of a subscription, each with the version that brought it.
consumer.SUBSCRIPTION = {
  { 'topics', 0, consumer.names_at }, { 'data', 0, consumer.bytes_at }, { 'owned', 1, group.all_named_at },
  { 'generation', 2, consumer.int_at }, { 'rack', 3, consumer.string_at },
}

-- The version of a subscription, which is also its answers'. Source: ConsumerProtocol.deserializeVersion
function consumer.version(metadata)
  return math.min(struct.unpack('>h', metadata), consumer.EMBEDDED)
end

-- A member's subscription: {version, topics, owned, rack} with topics in order, each once, and owned as [{name,
-- partitions}, ...], as far as its version has them; nil if the metadata is malformed.
function consumer.subscription(metadata, memories)
  local version, at = group.number_at(metadata, 1, '>h', 2)
  if not version or version < 0 then
    return nil
  end
  local read = { version = math.min(version, consumer.EMBEDDED), owned = {}, rack = '' }
  for _, field in ipairs(consumer.SUBSCRIPTION) do
    if read.version >= field[2] then
      local memory = memories and memories[field[1]]
      if memory then
        read[field[1]], at = consumer.remembered(memory, field[3], metadata, at)
      else
        read[field[1]], at = field[3](metadata, at)
      end
      if not at then
        return nil
      end
    end
  end
  return read
end

-- A leader's assignment to a member, as [{name, partitions}, ...], and true if a custom assignor added data to it; nil
-- if it is malformed.
function consumer.assigned(assignment, memories)
  if assignment == '' then
    return {}, false
  end
  local version, at = group.number_at(assignment, 1, '>h', 2)
  local named, data
  if version and version >= 0 then
    named, at = consumer.remembered(memories.owned, group.all_named_at, assignment, at)
    data = named and consumer.bytes_at(assignment, at)
  end
  return data and named, data ~= ''
end

-- An array of numbers as bytes.
function consumer.packed_ints(list)
  local parts = { struct.pack('>i4', #list) }
  for first = 1, #list, group.INTS do
    local last = math.min(first + group.INTS - 1, #list)
    parts[#parts + 1] = struct.pack('>' .. string.rep('i4', last - first + 1), unpack(list, first, last))
  end
  return table.concat(parts)
end

-- The bytes of an assignment of [{name, partitions}, ...]. Source: ConsumerProtocol.serializeAssignment
function consumer.encoded(named, version)
  local parts = { struct.pack('>hi4', version, #named) }
  for _, one in ipairs(named) do
    parts[#parts + 1] = struct.pack('>h', #one[1]) .. one[1] .. consumer.packed_ints(one[2])
  end
  return table.concat(parts) .. struct.pack('>i4', -1)
end

-- Topics from their lines `name topic_id partitions` by name.
function consumer.topics_by_name(text)
  local topics = {}
  for name, id, partitions in string.gmatch(text, '(%S+) (%x+) (%d+)') do
    topics[name] = { id = id, partitions = tonumber(partitions) }
  end
  return topics
end

-- [{name, partitions}, ...] as a set of partitions `topic_id:partition`, without topics that are not known by name.
function consumer.partitions_of(named, topics)
  local partitions = {}
  for _, one in ipairs(named) do
    local known = topics[one[1]]
    for _, index in ipairs(known and one[2] or {}) do
      partitions[known.id .. ':' .. index] = true
    end
  end
  return partitions
end

-- An assignment as [{name, partitions}, ...] in order of the names; topics without a name are left out.
-- Source: Utils.toConsumerProtocolAssignment
function consumer.named(text, names)
  local named = {}
  for id, list in string.gmatch(text, '(%x+):(%S+)') do
    local partitions = {}
    for partition in string.gmatch(list, '%d+') do
      partitions[#partitions + 1] = tonumber(partition)
    end
    if names[id] then
      named[#named + 1] = { names[id], partitions }
    end
  end
  table.sort(named, function(one, other) return one[1] < other[1] end)
  return named
end
