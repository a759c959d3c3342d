-- The catalog after somebody deleted a part of it by hand. A front-end that knows its last version writes that back.
-- Without one `korvet doctor --repair` enters the topics again whose partitions have keys.

-- catalog_restore: write fields of the topics or the settings back that are not there or cannot be read
-- KEYS[1] meta    hash  version, cluster_id, last_producer_id
-- KEYS[2] topics  hash  name -> topic JSON
-- KEYS[3] configs hash  name -> cluster-wide dynamic setting
-- ARGV[1] version   the catalog's, as far as the caller knows its fields; -1 if it found topics by their partitions
-- ARGV[2] hash      topics or configs
-- ARGV[3] is_last   true if the hash is whole with these fields, or false
-- ARGV[4..] fields  names and texts in turn
-- Returns {code, number of fields written}; may be repeated
-- Bound: 1000 fields
-- Codes: RETRY (nothing is lost, or the catalog has another version)
function catalog.restore(keys, args)
  local asked = value.arguments(args,
    'catalog_restore: version:int hash:topics|configs is_last:true|false fields*2<=1000')
  local key, fields = asked.hash == 'topics' and keys[2] or keys[3], asked.fields
  local version = tonumber(calls.call('HGET', keys[1], 'version') or 0)
  if asked.version ~= -1 and (version ~= asked.version or not catalog.is_lost(keys)) then
    return { code.RETRY, 0 }
  end
  local written = 0
  for at = 1, #fields, 2 do
    local text = calls.call('HGET', key, fields[at])
    if not text or asked.hash == 'topics' and not pcall(value.decoded, text, key, fields[at]) then
      calls.call('HSET', key, fields[at], fields[at + 1]) -- first write
      written = written + 1
    end
  end
  if asked.is_last == 'true' then
    calls.call('HSETNX', key, '', '')
  end
  if not catalog.is_lost(keys) then
    catalog.publish(keys[1])
  end
  return { code.NONE, written }
end
redis.register_function{
  function_name = 'korvet_catalog_restore',
  callback = catalog.restore,
  flags = { 'allow-oom' },
  description = 'write fields of the topics or the settings back that are not there or cannot be read',
}
