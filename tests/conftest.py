"""Fixtures that every directory of tests may use: real servers, each started and stopped by the fixture that owns it."""

from importlib.util import find_spec

pytest_plugins = [name for name in ("tests.support.redis", "tests.support.broker") if find_spec(name)]
