-- From here on, an error names the key that holds the wrong kind of value.
local redis = calls -- luacheck: ignore 431
