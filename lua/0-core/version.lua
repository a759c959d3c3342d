-- version: the version of this library
-- Returns the version string
function korvet.version()
  return korvet.VERSION
end
redis.register_function{
  function_name = 'korvet_version',
  callback = korvet.version,
  flags = { 'no-writes', 'allow-oom', 'allow-stale' },
  description = 'the version of this library',
}
