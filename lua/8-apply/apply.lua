-- Exactly once into Redis: a consumer applies commands to keys of its own, and in the same step the place in the topic
-- up to which it has applied moves on. Nothing here knows korvet's topics: the records may come from any Kafka broker.
--
-- The applied hash lies in the slot of the data, so a server that loses its last writes loses both. Its field
-- `application topic_id partition` has the text `owner epoch offset done digest`:
-- * the owner, who alone may apply;
-- * the place: leader epoch and offset of the last record that was applied, -1 -1 if none was;
-- * how many commands after that place are done, because the next one failed, and their digest, or 0 and -.
local apply = { MOST_COMMANDS = 100, MOST_WORDS = 1000, MOST_BYTES = 1048576, MOST_NAME = 249, MOST_OWNER = 32 }

-- Commands of one key, the first argument, that neither block nor cost more than their arguments.
apply.COMMANDS = {
  SET = true, UNLINK = true, APPEND = true, INCRBY = true, PEXPIREAT = true, PFADD = true, XADD = true,
  HSET = true, HDEL = true, HINCRBY = true, SADD = true, SREM = true, LPUSH = true, RPUSH = true,
  ZADD = true, ZINCRBY = true, ZREM = true,
}

function apply.refuse(text, ...)
  error('korvet_apply: ' .. string.format(text, ...), 0)
end

-- The field of a partition, for one whose names and keys are allowed.
function apply.field(keys, params)
  for name, most in pairs({ application = apply.MOST_NAME, topic_id = apply.MOST_NAME, owner = apply.MOST_OWNER }) do
    if #params[name] > most or not string.find(params[name], '^[%w._-]+$') then
      apply.refuse('%s must be 1 to %d letters, digits, dots, underscores and hyphens', name, most)
    end
  end
  if params.partition < 0 then
    apply.refuse('partition must not be negative')
  end
  for at, key in ipairs(keys) do
    if string.find(key, '^korvet:') or at > 1 and key == keys[1] then
      apply.refuse('key %s is not one of the data', key)
    end
  end
  return string.format('%s %s %d', params.application, params.topic_id, params.partition)
end

function apply.check_place(epoch, offset)
  if epoch < -1 or epoch > 2147483647 or offset < -1 or offset > 9007199254740992 then
    apply.refuse('%.0f %.0f is no leader epoch and offset', epoch, offset)
  end
end

-- What a field says; nil if there is none.
function apply.read(key, field)
  local text = redis.call('HGET', key, field)
  if not text then
    return nil
  end
  local owner, epoch, offset, done, digest = string.match(text, '^(%S+) (%-?%d+) (%-?%d+) (%d+) (%S+)$')
  if not owner then
    value.unreadable(key, field)
  end
  return { owner = owner, epoch = tonumber(epoch), offset = tonumber(offset), done = tonumber(done), digest = digest }
end

function apply.write(key, field, state)
  local text = string.format('%s %d %d %d %s', state.owner, state.epoch, state.offset, state.done, state.digest)
  redis.call('HSET', key, field, text)
end

-- True if a place comes after another one. A client without leader epochs gives -1; then offsets alone count.
function apply.is_after(epoch, offset, stored)
  if epoch ~= stored.epoch and epoch ~= -1 and stored.epoch ~= -1 then
    return epoch > stored.epoch
  end
  return offset > stored.offset
end

-- Raise an error unless a command is allowed, is on one of the keys, and is one that the caller may run.
function apply.check(number, command, is_key)
  if not apply.COMMANDS[command[1]] then
    apply.refuse('command %d, %s, is not one that can be applied', number, command[1])
  elseif not is_key[command[2]] then
    apply.refuse('the key of command %d, %s, is not given as a key', number, command[2])
  elseif command[1] == 'UNLINK' and #command > 2 then
    apply.refuse('command %d removes several keys', number)
  elseif not redis.acl_check_cmd(unpack(command)) then
    error({ err = string.format('NOPERM this user may not run command %d, %s', number, command[1]) })
  end
end

-- The commands of a list `number of words, words, ...`.
function apply.commands(keys, words)
  local commands, at, bytes, is_key = {}, 1, 0, {}
  for number = 2, #keys do
    is_key[keys[number]] = true
  end
  while words[at] do
    local count = value.number(words[at], 'korvet_apply: the number of words of command ' .. #commands + 1)
    if count < 2 or count > apply.MOST_WORDS or at + count > #words then
      apply.refuse('command %d cannot have %.0f words', #commands + 1, count)
    end
    local command = { string.upper(words[at + 1]), unpack(words, at + 2, at + count) }
    for _, word in ipairs(command) do
      bytes = bytes + #word
    end
    commands[#commands + 1], at = command, at + count + 1
    if #commands > apply.MOST_COMMANDS or bytes > apply.MOST_BYTES then
      apply.refuse('a call has at most %d commands and %d bytes', apply.MOST_COMMANDS, apply.MOST_BYTES)
    end
    apply.check(#commands, command, is_key)
  end
  return commands
end

-- A digest of the first so many commands.
function apply.digest(commands, count)
  local texts = {}
  for at = 1, count do
    texts[#texts + 1] = #commands[at] .. ';'
    for _, word in ipairs(commands[at]) do
      texts[#texts + 1] = #word .. ':' .. word
    end
  end
  return redis.sha1hex(table.concat(texts))
end

-- Run the commands after those that are done; the number of the first that failed and its error, or nil.
function apply.run(commands, done)
  for at = done + 1, #commands do
    local reply = redis.pcall(unpack(commands[at])) -- first write
    if type(reply) == 'table' and reply.err then
      return at, reply.err
    end
  end
  return nil
end

korvet.define({
  name = 'apply_claim',
  description = 'become the owner of a partition for an application, and learn the place where to go on; repeatable',
  keys = 'applied hash `application topic_id partition` -> `owner epoch offset done digest`, in the slot of the data',
  args = [[
    application   topic_id of the topic, or its name from a client that has no ids   partition:int
    owner a random text of the caller's
  ]],
  returns = [[{epoch, offset, done}: the place of the last record that was applied, -1 and -1 if none was, and how many
    of the next commands are done; any former owner is FENCED from now on]],
  notes = 'Names have 1 to 249 letters, digits, dots, underscores and hyphens, and an owner at most 32.',
}, function(keys, params)
  local field = apply.field(keys, params)
  local state = apply.read(keys[1], field) or { epoch = -1, offset = -1, done = 0, digest = '-' }
  state.owner = params.owner
  apply.write(keys[1], field, state) -- first write
  return { state.epoch, state.offset, state.done }
end)

korvet.define({
  name = 'apply',
  description = 'run commands on keys of the caller, and move its place on in the same step',
  keys = "applied hash as in apply_claim   data* the keys of the commands, in the same slot; none is korvet's own",
  args = [[
    application   topic_id   partition:int   owner   previous_epoch:int
    previous_offset:int the place that the last claim or apply returned
    epoch:int leader epoch of the last record from which the commands come; -1 if the client knows none
    offset:int of that record
    commands*<=10000 the number of words, and the words, of each command in turn
  ]],
  returns = [[{APPLIED, epoch, offset}; {SKIPPED, epoch, offset}: it was applied before; {MOVED, epoch, offset}: the
    stored place is another one than the previous one, so go on reading after it; {FENCED}: claim again; {FAILED,
    number, error}: the commands before this one are done, and the next call goes on with it; {CONFLICT, done}: so many
    commands were done in the call that failed, and those of this call are others]],
  bound = [[100 commands and 1 MiB a call, 1000 words a command: SET, UNLINK, APPEND, INCRBY, PEXPIREAT, PFADD, XADD,
    HSET, HDEL, HINCRBY, SADD, SREM, LPUSH, RPUSH, ZADD, ZINCRBY, ZREM, each on one key, its first argument]],
  notes = [[Epochs are compared before offsets; if one is -1, offsets alone. Without commands the place moves on. What
    is wrong with the call, or what the caller's ACL forbids, is an error before anything is done.]],
}, function(keys, params)
  local field, commands = apply.field(keys, params), apply.commands(keys, params.commands)
  apply.check_place(params.epoch, params.offset)
  local state = apply.read(keys[1], field)
  if not redis.acl_check_cmd('HSET', keys[1], field, '') then
    error({ err = 'NOPERM this user may not write ' .. keys[1] })
  elseif not state or state.owner ~= params.owner then
    return { 'FENCED' }
  elseif not apply.is_after(params.epoch, params.offset, state) then
    return { 'SKIPPED', state.epoch, state.offset }
  elseif state.epoch ~= params.previous_epoch or state.offset ~= params.previous_offset then
    return { 'MOVED', state.epoch, state.offset }
  elseif state.done > 0 and (state.done > #commands or state.digest ~= apply.digest(commands, state.done)) then
    return { 'CONFLICT', state.done }
  end
  local failed, problem = apply.run(commands, state.done)
  if not failed then
    state.epoch, state.offset, state.done, state.digest = params.epoch, params.offset, 0, '-'
  elseif failed - 1 > state.done then
    state.done, state.digest = failed - 1, apply.digest(commands, failed - 1)
  else
    return { 'FAILED', failed, problem }
  end
  apply.write(keys[1], field, state)
  return failed and { 'FAILED', failed, problem } or { 'APPLIED', state.epoch, state.offset }
end)
