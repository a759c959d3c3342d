-- Numbers, texts and times. Numbers are doubles: exact to 2^53, but their own text form turns into 1e+14 above 14
-- digits.
local value = {}

-- A number as the text of an integer.
function value.integer(number)
  return string.format('%d', number)
end

-- An argument that must be an integer, as a number; an error names it where it is not.
function value.number(text, name)
  local number = tonumber(text)
  if not number or number % 1 ~= 0 then
    error(name .. ' is not an integer: ' .. tostring(text), 0)
  end
  return number
end

-- Milliseconds since 1970.
function value.now_ms()
  return math.floor(clock.now_us() / 1000)
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
