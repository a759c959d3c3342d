local clock = {}

-- The only clock of the library, in microseconds since 1970. It is alone in its file, so that a test can replace it.
function clock.now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
