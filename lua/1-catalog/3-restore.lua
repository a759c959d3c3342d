-- The catalog after somebody deleted a part of it by hand. A front-end that knows its last version writes that back.
-- Without one, `korvet doctor --repair` enters the topics again from their partitions' keys.

korvet.define({
  name = 'catalog_restore', flags = { 'allow-oom' },
  description = 'write fields of the topics or the settings back that are not there or cannot be read',
  keys = '@catalog',
  args = [[
    version:int the catalog's, as far as the caller knows its fields; -1 if it found topics by their partitions
    hash:topics|configs   is_last:true|false true if the hash is whole with these fields, or false
    fields*2<=1000 names and texts in turn
  ]],
  returns = '{code, number of fields written}; may be repeated',
  codes = 'RETRY (nothing is lost, or the catalog has another version)',
}, function(keys, params)
  local key, fields = params.hash == 'topics' and keys[2] or keys[3], params.fields
  local version = tonumber(calls.call('HGET', keys[1], 'version') or 0)
  if params.version ~= -1 and (version ~= params.version or not catalog.is_lost(keys)) then
    return { code.RETRY, 0 }
  end
  local written = 0
  for at = 1, #fields, 2 do
    local text = calls.call('HGET', key, fields[at])
    if not text or params.hash == 'topics' and not pcall(value.decoded, text, key, fields[at]) then
      calls.call('HSET', key, fields[at], fields[at + 1]) -- first write
      written = written + 1
    end
  end
  if params.is_last == 'true' then
    calls.call('HSETNX', key, '', '')
  end
  if not catalog.is_lost(keys) then
    catalog.publish(keys[1])
  end
  return { code.NONE, written }
end)
