-- Members of a group of the consumer protocol that speak the classic protocol.

-- Each of these answers for the classic function of its name, of a group that is read and advanced.
function consumer.join(g, request)
  consumer.save(g)
  return { code.INCONSISTENT_GROUP_PROTOCOL, request.member_id }
end

function consumer.await(g, args)
  local answers = {}
  for _ = 2, #args - 1, 2 do
    answers[#answers + 1] = { code.UNKNOWN_MEMBER_ID, '' }
  end
  consumer.save(g)
  return answers
end

function consumer.sync(g, _)
  consumer.save(g)
  return { code.UNKNOWN_MEMBER_ID }
end

function consumer.await_sync(g, args)
  local answers = {}
  for _ = 3, #args - 1, 2 do
    answers[#answers + 1] = { code.UNKNOWN_MEMBER_ID }
  end
  consumer.save(g)
  return answers
end

function consumer.heartbeat(g, _)
  consumer.save(g)
  return code.UNKNOWN_MEMBER_ID
end

function consumer.leave_classic(g, args)
  local codes = {}
  for _ = 2, #args - 1, 2 do
    codes[#codes + 1] = code.UNKNOWN_MEMBER_ID
  end
  consumer.save(g)
  return codes
end
