"""Passwords for commands: from a file, from stdin, or typed at a terminal; never an argument."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from korvet.cli.ground.options import Function
from korvet.errors import KorvetError


def password_file(function: Function) -> Function:
    """The flag ``--password-file``; hands over the path, which `read_password` takes."""
    return click.option(
        "--password-file", type=click.Path(path_type=Path), metavar="FILE", help="A file with the password; - is stdin."
    )(function)


def read_password(file: Path | None) -> str:
    """The password: from a file, from stdin, or typed twice at a terminal.

    :raises KorvetError: if the file cannot be read, or the password is empty.
    """
    try:
        if file is not None and str(file) != "-":
            password = file.read_text("utf-8")
        elif file is None and sys.stdin.isatty():
            password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        else:
            password = sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        raise KorvetError(f"cannot read the password: {error}") from None
    password = password.removesuffix("\n").removesuffix("\r")
    if not password:
        raise KorvetError("the password may not be empty")
    return password
