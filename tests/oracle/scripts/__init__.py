"""The oracle's scripts: those of each module here that has SCRIPTS."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from tests.oracle.script import Script

_AREAS: Final = [import_module(f"{__name__}.{area.name}") for area in iter_modules(__path__)]
SCRIPTS: Final[tuple[Script, ...]] = tuple(script for area in _AREAS for script in getattr(area, "SCRIPTS", ()))
