korvet.define({
  name = 'version', flags = { 'no-writes', 'allow-oom', 'allow-stale' },
  description = 'the version of this library',
  returns = 'the version string',
}, function()
  return korvet.VERSION
end)
