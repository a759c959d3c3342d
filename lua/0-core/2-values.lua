-- Numbers, texts and times. Numbers are doubles: exact to 2^53, but tostring writes 1e+14 above 14 digits.
local value = {}

-- A number as the text of an integer.
function value.integer(number)
  return string.format('%d', number)
end

-- An argument that must be an integer, as a number. If it is not an integer, an error names it.
function value.number(text, name)
  local number = tonumber(text)
  if not number or number % 1 ~= 0 then
    error(name .. ' is not an integer: ' .. tostring(text), 0)
  end
  return number
end

-- Raise the error of a hash's field that korvet did not write. Its text tells an operator which field to remove.
function value.unreadable(key, field)
  error('field ' .. field .. ' of ' .. key .. ' cannot be read', 0)
end

-- A field's JSON as a table; an error names the field if it is none.
function value.decoded(text, key, field)
  local is_json, found = pcall(cjson.decode, text)
  return is_json and type(found) == 'table' and found or value.unreadable(key, field)
end

-- Milliseconds since 1970.
function value.now_ms()
  return math.floor(clock.now_us() / 1000)
end

-- The ms by which a time server may set the clock back at any time. That ends nothing.
value.CORRECTION_MS = 1000

-- Whether a deadline that was set to so many ms is still to come. One that lies further ahead was set before the clock
-- went back, and is over.
function value.is_running(deadline, now, lasts_ms)
  return deadline > now and deadline <= now + lasts_ms + value.CORRECTION_MS
end

-- The ms by which the clock went back since a unit noted a time; 0 if it did not. So much earlier are the unit's times.
function value.set_back_ms(noted, now)
  return math.max((noted or now) - now, 0)
end

-- A flat reply (HGETALL) as a table from names to values.
function value.pairs(flat)
  local named = {}
  for at = 1, #flat, 2 do
    named[flat[at]] = flat[at + 1]
  end
  return named
end

-- Apply {"set": {name: value, ...}, "delete": [name, ...], "replace": bool} to a table of settings.
function value.changed(settings, change)
  local result = {}
  if not change.replace then
    for name, setting in pairs(settings) do
      result[name] = setting
    end
  end
  for _, name in ipairs(change.delete or {}) do
    result[name] = nil
  end
  for name, setting in pairs(change.set or {}) do
    result[name] = setting
  end
  return result
end

-- Raise an error if the repeated arguments after the fixed ones are more than the function's bound.
function value.bounded(called, args, fixed, bound)
  if #args - fixed > bound then
    error(called .. ': ' .. value.integer(#args - fixed) .. ' arguments where at most ' .. value.integer(bound)
      .. ' are allowed', 0)
  end
end

-- The parsed texts of earlier calls of value.arguments.
value.shapes = {}

-- A parsed text for value.arguments: the fixed arguments, the repeated one, and the least number of arguments.
function value.shape(text)
  local called, words = string.match(text, '^([%w_]+): (.*)$')
  local shape = { called = 'korvet_' .. called, words = words, names = {}, kinds = {}, least = 0 }
  for word in string.gmatch(words, '%S+') do
    local name, kind, mark, step, bound = string.match(word, '^([%w_]+):?([%w|]*)([?*+]?)(%d*)<?=?(%d*)$')
    if mark == '*' or mark == '+' then
      shape.rest, shape.step, shape.bound = name, tonumber(step) or 1, tonumber(bound)
      shape.least = shape.least + (mark == '+' and shape.step or 0)
    else
      shape.names[#shape.names + 1] = name
      if kind ~= '' then
        shape.kinds[#shape.kinds + 1] = { name = name, kind = kind, label = shape.called .. ': ' .. name }
      end
      shape.least = shape.least + (mark == '' and 1 or 0)
    end
  end
  value.shapes[text] = shape
  return shape
end

-- An argument as a number if its kind is int, else checked to be one of some words.
function value.of_kind(text, name, kind)
  if kind == 'int' then
    return value.number(text, name)
  elseif not (string.find(text, '^%w+$') and string.find('|' .. kind .. '|', '|' .. text .. '|')) then
    error(name .. ' must be one of ' .. kind .. ', not ' .. text, 0)
  end
  return text
end

-- A function's arguments by the names of its header. The text is the function's name, a colon, and a word for each
-- argument in the header's order. A word is `name`, `name:int` of an integer, `name:one|other` of one of these words,
-- `name?` of an optional one, or last `names*<=9`: an array of the further ones, at most 9. Arguments of `names*2<=9`
-- come two at a time, and `names+<=9` needs at least one. Another number of arguments is an error with the code
-- ARGUMENTS, by which a newer caller knows an older library.
function value.arguments(args, text)
  local shape = value.shapes[text] or value.shape(text)
  local names, named = shape.names, {}
  local further = #args - #names
  if #args < shape.least or further > 0 and (not shape.rest or further % shape.step > 0) then
    error{ err = 'ARGUMENTS ' .. shape.called .. ' takes the arguments ' .. shape.words .. '; the call has '
      .. value.integer(#args) }
  end
  for at = 1, #names do
    named[names[at]] = args[at]
  end
  for _, of in ipairs(shape.kinds) do
    named[of.name] = named[of.name] and value.of_kind(named[of.name], of.label, of.kind)
  end
  if shape.rest then
    value.bounded(shape.called, args, #names, shape.bound)
    local rest = {}
    for at = 1, further do
      rest[at] = args[#names + at]
    end
    named[shape.rest] = rest
  end
  return named
end
