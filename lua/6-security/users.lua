-- SCRAM credentials of a namespace's users. Front-ends keep all of them in memory, so that a login asks Redis nothing.
--
-- A credential is the text `iterations salt stored_key server_key`, with the last three in base64. Its field is the
-- mechanism, a colon and the user's name. The field of the empty name has the version.
-- Source: org.apache.kafka.common.security.scram.ScramCredential
local users = { MOST_BYTES = 1024 }

-- True if a field and a text are a credential.
function users.is_credential(field, text)
  return #field + #text <= users.MOST_BYTES and string.find(field, '^SCRAM%-SHA%-%d+:.')
    and string.find(text, '^%d+ [%w+/=]* [%w+/=]+ [%w+/=]+$')
end

korvet.define({
  name = 'users_read', flags = { 'no-writes', 'allow-oom' },
  description = 'all SCRAM credentials, or only their version if the caller knows that version',
  keys = "users hash mechanism:user -> credential, '' -> version",
  args = 'known_version:int a version, or -1',
  returns = '{0, version, [mechanism:user, credential, ...]}; no credentials when known_version is the version',
  bound = '10000 credentials',
}, function(keys, params)
  return security.read(keys[1], params.known_version)
end)

korvet.define({
  name = 'users_alter', flags = { 'allow-oom' },
  description = 'set and delete SCRAM credentials, each with its own outcome',
  keys = 'users hash as in users_read',
  args = "changes+2<=2000 mechanism:user and its credential in turn; '' deletes it; each mechanism:user once",
  returns = '{code, [code of the change, ...]} in the order of the changes; nothing changed unless the first code is 0',
  bound = '10000 credentials, each of 1024 bytes with its field',
  codes = [[INVALID_REQUEST (a text is no credential), POLICY_VIOLATION (there would be too many); of a change:
    RESOURCE_NOT_FOUND (it deletes what is not there)]],
  source = 'ScramControlManager.alterCredentials',
}, function(keys, params)
  local changes = params.changes
  local codes, taken, more = {}, {}, 0
  for at = 1, #changes, 2 do
    local field, text = changes[at], changes[at + 1]
    local is_there = redis.call('HGET', keys[1], field) ~= false
    codes[#codes + 1] = code.NONE
    if text == '' and (field == '' or not is_there) then
      codes[#codes] = code.RESOURCE_NOT_FOUND
    elseif text ~= '' and not users.is_credential(field, text) then
      return { code.INVALID_REQUEST, {} }
    else
      more = more + (text ~= '' and 1 or 0) - (is_there and 1 or 0)
      taken[#taken + 1], taken[#taken + 2] = field, text
    end
  end
  if security.exceeds(keys[1], more) then
    return { code.POLICY_VIOLATION, {} }
  end
  security.write(keys[1], taken) -- first write
  return { code.NONE, codes }
end)

korvet.define({
  name = 'security_secret', flags = { 'allow-oom' },
  description = 'the secret of a namespace, which the first caller makes',
  keys = 'secret string',
  args = 'proposed base64, for the case that there is none',
  returns = '{0, secret}',
}, function(keys, params)
  redis.call('SET', keys[1], params.proposed, 'NX') -- first write
  return { code.NONE, redis.call('GET', keys[1]) }
end)
