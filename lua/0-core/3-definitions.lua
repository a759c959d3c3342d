-- The functions that a server lists. `korvet.define(contract, run)` registers one. The contract is the only statement
-- of what it takes and returns. korvet/store/contract.py reads the same table for callers and for docs/functions.md:
-- * name, without `korvet_`; description; flags, as Redis knows them.
-- * was: the former name, and the last minor version whose front-ends call it. The library has both names until the
--   minor version after that one, and a test fails if it has them longer.
-- * keys and args: lists of words, each with prose after it. A word begins a line or follows three blanks. A line that
--   goes on with prose is indented by six. A word is `name`; `name:int` of an integer; `name:ms` of a time, at most 30
--   days; `name:one|other` of one of these words; `name?` of an optional one; or last `names*<=9`: an array of the
--   further ones, at most 9. Those of `names*2<=9` come two at a time, and `names+<=9` needs at least one. `@set`
--   stands for a text of korvet.KEYSETS.
-- * returns; bound, of what a call touches beside its arguments; codes; source; notes.
-- An argument `outages` is a text `served_until from-to ...`, or '' if the caller knows of none.
--
-- `run` is called with the keys and a table of the arguments by name. If by_position is true, it gets the array of
-- arguments as it came, unchecked but for their number: one more table for each call would slow hot functions down.
local definition = { LONGEST_MS = 2592000000 }

-- Keys that several functions take.
korvet.KEYSETS = {
  catalog = [[
    meta hash version, cluster_id, last_producer_id   topics hash name -> topic JSON
    configs hash name -> cluster-wide dynamic setting
  ]],
  log = [[
    log stream record batches   meta hash identity, offsets, epochs, totals
    producers hash producer id -> last batches
  ]],
  open = [[
    open zset producer id -> first offset of its open transaction
    aborted zset `first last producer_id stable` by the last offset
    transactions hash producer id -> `epoch closed_ordinal open_ordinal transactional_id`
  ]],
  tier = [[
    log stream record batches   meta hash identity, offsets, epochs, totals
    tier zset `kind first size footer_bytes max_timestamp running_max_timestamp running_bytes crc name` of a segment by
      the offset after it
    aborted zset `first last producer_id stable` by the last offset
  ]],
  share = [[
    log stream record batches   meta hash identity, offsets, epochs, totals
    shares hash group id -> `id start next tracked available archiving due least swept full letters clock`
    ranges zset `state first last count size` of a group's offsets in flight, acquired ones with their lock, by the
      first offset
  ]],
  group = [[
    group hash state, generation, leader, deadlines   members hash member id -> record
    sessions zset member id -> end of its session   static hash instance id -> member id
    offsets hash topic:partition -> committed offset
  ]],
  transaction = [[
    id hash state of the transactional id   deadlines zset transactional id -> ms at which its next work is due
  ]],
}

-- The words of a list in a contract, without their prose.
function definition.words(list, words)
  local text = string.gsub(string.gsub(list, '\n      +', ' '), '   +', '\n')
  for word in string.gmatch('\n' .. text, '\n *([^\n ]+)') do
    if string.sub(word, 1, 1) == '@' then
      definition.words(korvet.KEYSETS[string.sub(word, 2)], words)
    else
      words[#words + 1] = word
    end
  end
  return words
end

-- The parsed words of a list: the fixed ones, the kinds of some, the repeated one, and the least and the most number.
function definition.parsed(called, what, list)
  local words = definition.words(list, {})
  local parsed = { called = called, what = what, words = table.concat(words, ' '), names = {}, kinds = {} }
  parsed.least, parsed.step, parsed.more = 0, 1, 0
  for _, word in ipairs(words) do
    local name, kind, mark, step, bound = string.match(word, '^([%w_]+):?([%w|]*)([?*+]?)(%d*)<?=?(%d*)$')
    if mark == '*' or mark == '+' then
      parsed.rest, parsed.step, parsed.more = name, tonumber(step) or 1, tonumber(bound) or math.huge
      parsed.least = parsed.least + (mark == '+' and parsed.step or 0)
    else
      parsed.names[#parsed.names + 1] = name
      if kind ~= '' then
        parsed.kinds[#parsed.kinds + 1] = { name = name, kind = kind, label = called .. ': ' .. name }
      end
      parsed.least = parsed.least + (mark == '' and 1 or 0)
    end
  end
  parsed.fixed = #parsed.names
  return parsed
end

-- Raise an error if a call has another number of keys or arguments than the parsed ones. By its code ARGUMENTS a newer
-- caller knows an older library.
function definition.count(given, parsed)
  local further = #given - parsed.fixed
  if #given >= parsed.least and (further <= 0 or further <= parsed.more and further % parsed.step == 0) then
    return
  elseif parsed.rest and further > parsed.more then
    error(string.format('%s: %d %s where at most %d are allowed', parsed.called, further, parsed.what, parsed.more), 0)
  end
  local text = 'ARGUMENTS %s takes the %s %s; the call has %d'
  error{ err = string.format(text, parsed.called, parsed.what, parsed.words, #given) }
end

-- An argument as a number if its kind is int or ms, else checked to be one of some words.
function definition.of_kind(text, name, kind)
  if kind == 'int' then
    return value.number(text, name)
  elseif kind == 'ms' then
    local ms = value.number(text, name)
    if ms < 0 or ms > definition.LONGEST_MS then
      error(string.format('%s must be 0 to %d', name, definition.LONGEST_MS), 0)
    end
    return ms
  elseif not (string.find(text, '^%w+$') and string.find('|' .. kind .. '|', '|' .. text .. '|')) then
    error(name .. ' must be one of ' .. kind .. ', not ' .. text, 0)
  end
  return text
end

-- The arguments by name.
function definition.named(args, parsed)
  local names, named = parsed.names, {}
  for at = 1, parsed.fixed do
    named[names[at]] = args[at]
  end
  for _, of in ipairs(parsed.kinds) do
    named[of.name] = named[of.name] and definition.of_kind(named[of.name], of.label, of.kind)
  end
  if parsed.rest then
    local rest = {}
    for at = parsed.fixed + 1, #args do
      rest[#rest + 1] = args[at]
    end
    named[parsed.rest] = rest
  end
  return named
end

-- While the library loads there is no function of strings, so the first call parses the contract. Numbers of keys and
-- arguments that were found right are remembered, except of functions that take any number.
function korvet.define(contract, run)
  local called, by_position = 'korvet_' .. contract.name, contract.by_position
  local keys_list, args_list = contract.keys or '', contract.args or ''
  local key_words, words, accepted = nil, nil, {}
  local function check(keys, args, counts)
    key_words = key_words or definition.parsed(called, 'keys', keys_list)
    words = words or definition.parsed(called, 'arguments', args_list)
    -- Further keys do no harm, and a newer front-end may give some.
    key_words.more = math.huge
    definition.count(keys, key_words)
    definition.count(args, words)
    accepted[counts] = not key_words.rest and not words.rest
  end
  local registered = {
    function_name = called,
    flags = contract.flags,
    description = contract.description,
    callback = function(keys, args)
      local counts = #keys * 1048576 + #args
      if not accepted[counts] then
        check(keys, args, counts)
      end
      return run(keys, by_position and args or definition.named(args, words))
    end,
  }
  redis.register_function(registered)
  if contract.was then
    registered.function_name = 'korvet_' .. contract.was[1]
    redis.register_function(registered)
  end
end
