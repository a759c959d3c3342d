-- Numbers, texts and times. Numbers are doubles: exact to 2^53, but tostring writes 1e+14 above 14 digits.
local value = {}

-- A number as the text of an integer. A client's time may be 2^63, which would become -2^63: it is the double before.
function value.integer(number)
  return string.format('%d', math.min(number, 9223372036854774784))
end

-- An argument that must be an integer, as a number. If it is not an integer, an error names it.
function value.number(text, name)
  local number = tonumber(text)
  if not number or number % 1 ~= 0 then
    error(name .. ' is not an integer: ' .. tostring(text), 0)
  end
  return number
end

-- Raise the error of a foreign text in a hash's field. The message says which field an operator has to remove.
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

-- A time server may set the clock back by so many ms at any time. That ends nothing.
value.CORRECTION_MS = 1000

-- True if a deadline set `lasts_ms` ahead is still to come. One that lies further ahead was set before the clock went
-- back, and is over.
function value.is_running(deadline, now, lasts_ms)
  return deadline > now and deadline <= now + lasts_ms + value.CORRECTION_MS
end

-- How far the clock went back since a unit noted a time, in ms; else 0. The unit's times have to move back as far.
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
