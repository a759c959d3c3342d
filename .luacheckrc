-- For the concatenated library: cat lua/*/*.lua | luacheck --config .luacheckrc -
std = {
  read_globals = {
    redis = { fields = { 'acl_check_cmd', 'call', 'pcall', 'register_function', 'sha1hex' } },
    cjson = { fields = { 'decode', 'encode', 'null' } },
    cmsgpack = { fields = { 'pack', 'unpack' } },
    struct = { fields = { 'pack', 'unpack', 'size' } },
    bit = { fields = { 'band', 'bor', 'bxor', 'lshift', 'rshift' } },
    math = { fields = { 'ceil', 'floor', 'huge', 'max', 'min' } },
    string = { fields = { 'byte', 'find', 'format', 'gmatch', 'gsub', 'len', 'lower', 'match', 'rep', 'sub', 'upper' } },
    table = { fields = { 'concat', 'insert', 'remove', 'sort' } },
    'assert', 'error', 'ipairs', 'next', 'pairs', 'pcall', 'select', 'tonumber', 'tostring', 'type', 'unpack',
  },
}
color = false
codes = true
max_line_length = 120
max_cyclomatic_complexity = 15
