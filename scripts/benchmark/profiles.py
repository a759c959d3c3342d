"""Profiles of the brokers' processes while a line is measured: by perf of all of them, by py-spy of Python's stacks.

A profile costs the broker some time, so figures of a run with profiles are not to be reported.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import click

from scripts.benchmark.processes import OTHER_ROLE, pids_by_role

_HERTZ: Final = "199"
_WRITES_WITHIN_S: Final = 60.0
_TOOLS: Final = {
    "perf": "apt-get install linux-perf",
    "py-spy": "pip install py-spy",
    "strace": "apt-get install strace",
}


def tool(name: str, option: str) -> str:
    """The path of a program that an option of the benchmark needs.

    :raises click.UsageError: it is not installed.
    """
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise click.UsageError(f"{option} needs {name}, which is not installed; install it: {_TOOLS[name]}")
    return found


class Profiler:
    """Writes profiles into a directory: ``MEASURE-BROKER.perf`` for `perf report -i`, ``MEASURE-BROKER-PID.stacks``
    with a line for each of Python's stacks and its number of samples.

    :raises click.UsageError: if a tool is missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._perf, self._py_spy = tool("perf", "--profile"), tool("py-spy", "--profile")
        directory.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def profiled(self, name: str, pids: Sequence[int]) -> Iterator[None]:
        """Take profiles of processes, and of those below them, while the block runs."""
        by_role = pids_by_role(pids)
        every = ",".join(str(pid) for role in by_role.values() for pid in role)
        commands = [
            [self._perf, "record", "-F", _HERTZ, "-g", "-p", every, "-o", str(self._directory / f"{name}.perf")]
        ]
        commands += [
            [self._py_spy, "record", "-r", _HERTZ, "-f", "raw", "-p", str(pid),
             "-o", str(self._directory / f"{name}-{pid}.stacks")]
            for pid in by_role.get(OTHER_ROLE, ())
        ]  # fmt: skip
        with ExitStack() as stack:
            for command in commands:
                stack.enter_context(_recording(command))
            yield


@contextmanager
def _recording(command: Sequence[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            _, output = process.communicate(timeout=_WRITES_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            output = b"it did not end"
        # perf ends by the signal itself, py-spy with 0.
        if process.returncode not in (0, -signal.SIGINT):
            click.echo(f"{command[0]} failed: {output.decode(errors='replace').strip()[-500:]}", err=True)
