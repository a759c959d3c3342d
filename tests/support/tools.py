"""External programs that some tests need: kcat, Node, Java, Maven, redis-server."""

import os
import shutil
from typing import NoReturn

import pytest


def find_tool(name: str) -> str:
    """The path of a program on PATH. If it is missing, the test is skipped; if CI is set, it fails."""
    path = shutil.which(name)
    if path is None:
        cannot_run(f"{name} is not installed")
    return path


def cannot_run(reason: str) -> NoReturn:
    """Skip the test because this machine lacks something; if the environment variable CI is set, fail it."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
