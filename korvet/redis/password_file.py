"""A Redis password in a file that is read at each login."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from korvet.errors import StoreError

NO_PASSWORD: Final = "the password cannot be read: "
"""The beginning of the error's text."""
_MOST_BYTES: Final = 4096


def read_password_file(path: Path) -> str:
    """The password: a file's text without the trailing newline.

    :raises StoreError: the file cannot be read, is not regular, is empty, or has more than 4 KiB.
    """
    try:
        # A pipe would block the loop.
        if not stat.S_ISREG(path.stat().st_mode):
            raise StoreError(f"{NO_PASSWORD}{path} is no regular file")
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        password = text.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise StoreError(f"{NO_PASSWORD}{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StoreError(f"{NO_PASSWORD}{path} is not UTF-8") from None
    if not password or len(text) > _MOST_BYTES:
        raise StoreError(f"{NO_PASSWORD}{path} has no password of at most {_MOST_BYTES} bytes")
    return password


def others_may_read(path: Path) -> bool:
    """True if every user of the machine may read a file; false if it does not exist."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)
