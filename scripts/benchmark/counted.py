"""A program that counts its calls: ``python -m scripts.benchmark.counted SOCKET MODULE [argument …]``.

Who connects to the unix socket gets the numbers of Python's functions that the main thread has entered, coroutines that
go on among them, and of C's functions that it has called from Python.
"""

import runpy
import socket
import sys
import threading
from typing import Any, Final

PYTHON: Final = "call"
C: Final = "c_call"


def _report(listener: socket.socket, counts: dict[str, int]) -> None:
    while True:
        client, _ = listener.accept()
        with client:
            client.sendall(b"%d %d\n" % (counts[PYTHON], counts[C]))


def run(path: str, module: str) -> None:
    """Run the module as the program, and count."""
    counts = dict.fromkeys((PYTHON, C, "return", "c_return", "c_exception"), 0)

    def count(_frame: Any, event: str, _argument: Any) -> None:
        counts[event] += 1

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        threading.Thread(target=_report, args=(listener, counts), daemon=True).start()
        sys.setprofile(count)
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run(sys.argv.pop(1), sys.argv.pop(1))
