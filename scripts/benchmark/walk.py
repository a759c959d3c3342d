"""Play one request against a real front-end in this process, and print its way through the code.

A walk has a step for each time that the loop calls korvet: bytes arrive, a reply comes, a task goes on. A step is shown
up to where it acts: it packs a command for Redis, finishes a future, or writes to a socket. Functions of one file that
call each other share a line.
"""

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby, takewhile
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import anyio
import anyio.from_thread
import anyio.to_thread
import click
import redis

import korvet
from korvet.server.ground.settings import ListenerSettings, ServeSettings
from korvet.server.ground.sockets import bind
from korvet.server.processes.embedded import embedded_server
from korvet.server.processes.figures import Serving
from korvet.server.processes.frontend import serve_listeners
from korvet.server.processes.live import Live
from scripts.benchmark import calls
from scripts.benchmark.play import answer, connected
from scripts.benchmark.targets import Target, admin_topics
from tests.support.ports import free_port

HOME: Final = Path(korvet.__file__).parent
WALKS: Final = {
    "heartbeat": "heartbeat", "commit": "commits, 50 connections", "produce": "Produce of a record",
    "fetch": "Fetch of 1 MB",
}  # fmt: skip
"""Name -> line of `scripts.benchmark.calls`."""
PLAYED: Final = 15
TIMED: Final = 200
BATCHES, RECORDS, APART = 400, 10, 20
"""Batches, of records of 1 kB, and of them those between two Fetches: so that none of their entries was read ahead."""
_ACTS: Final = {"pack_command": "packs a command", "set_result": "a future is done"}
_ANSWERS: Final = "writes to the client"
_END: Final = "the walk ends"


class Function(NamedTuple):
    """A function of korvet's: its file below ``korvet/``, and its name there."""

    file: str
    name: str


Way = tuple[Function, ...]
"""Functions that call each other, the outermost first."""


class Act(NamedTuple):
    """The way to an act, and what it is."""

    way: Way
    what: str


class Walk(NamedTuple):
    """A request's way. ``called`` has every function of korvet's, as often as it was entered, with its depth.

    ``commands`` are Redis's, a call with its function's name.
    """

    acts: tuple[Act, ...]
    called: tuple[tuple[int, Function], ...]
    commands: tuple[str, ...]

    @property
    def frames(self) -> int:
        """The functions that have to be read to follow it."""
        return len({function for act in self.acts for function in act.way})

    @property
    def files(self) -> int:
        return len({function.file for act in self.acts for function in act.way})

    @property
    def depth(self) -> int:
        return max(len(act.way) for act in self.acts)

    def lines(self) -> Iterator[str]:
        """The walk as text, a line for each file on the way of a step. What a step repeats of the one before is left
        out."""
        before: Way = ()
        for act in self.acts:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, act.way, strict=False)))
            before = act.way
            for file, functions in groupby(act.way[same:], key=lambda function: function.file):
                yield f"{'... ' * (same > 0)}{file:{40 - 4 * (same > 0)}} {_names(list(functions))}"
                same = 0
            yield f"{'':40} = {act.what}"


def _names(functions: Sequence[Function]) -> str:
    """Their names; a method has its class's unless the one before has the same."""
    owners = ["", *(function.name.rpartition(".")[0] for function in functions)]
    return " > ".join(
        function.name if owner != before else function.name.rpartition(".")[2]
        for function, before, owner in zip(functions, owners, owners[1:], strict=False)
    )


class _Recorder:
    """Follows the calls of one thread, as its profile function."""

    def __init__(self) -> None:
        self.acts: list[Act] = []
        self.called: list[tuple[int, Function]] = []
        self._stack: list[Function | None] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            path, code = Path(frame.f_code.co_filename), frame.f_code
            # A comprehension is a function before Python 3.12 alone.
            is_ours = path.is_relative_to(HOME) and not code.co_name.startswith("<")
            name = code.co_qualname.replace("<locals>.", "")
            function = Function(path.relative_to(HOME).as_posix(), name) if is_ours else None
            self._stack.append(function)
            if function is not None:
                self.called.append((len(self._way), function))
                # uvloop's methods are no C functions to Python's profiler.
                if "writelines" in code.co_names:
                    self._note("writes to Redis" if function.file.startswith("redis/") else _ANSWERS)
        elif event == "return" and self._stack:
            self._stack.pop()
        elif event == "c_call" and argument.__name__ in _ACTS and self._way:
            self._note(_ACTS[argument.__name__])

    def _note(self, what: str) -> None:
        if (act := Act(self._way, what)) not in self.acts[-1:]:
            self.acts.append(act)

    @property
    def _way(self) -> Way:
        return tuple(function for function in self._stack if function is not None)


def _recorded(recorder: _Recorder, frame_sent: Callable[[], None], url: str) -> Walk:
    with ExitStack() as stack:
        server, other = (stack.enter_context(redis.Redis.from_url(url)) for _ in range(2))
        server.ping()  # its connection's first commands are not the walk's
        monitor = stack.enter_context(other.monitor())
        anyio.from_thread.run_sync(sys.setprofile, recorder)
        frame_sent()
        anyio.from_thread.run_sync(sys.setprofile, None)
        server.echo(_END)
        seen = list(takewhile(lambda each: _END not in each["command"], monitor.listen()))
    commands_seen = (each["command"].split() for each in seen if each["client_type"] != "lua")
    commands = [" ".join(words[: 2 if words[0] == "FCALL" else 1]) for words in commands_seen]
    # What comes after the answer, such as a batch that is read ahead, may come in time or not.
    answered = max(at for at, act in enumerate(recorder.acts) if act.what == _ANSWERS)
    return Walk(tuple(recorder.acts[: answered + 1]), tuple(recorder.called), tuple(commands))


def _play(job: calls.Job, address: str, url: str, timed: int) -> tuple[Walk, float]:
    """The commonest of some walks, so that no other work of the front-end is in it, and microseconds of processor."""
    sent, first = job.requests[0], job.first()
    frame, at = bytearray.fromhex(sent["frame"]), sent["offset_at"]
    clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
    with connected(address) as wire:

        def one(number: int) -> None:
            if at:
                frame[at : at + 8] = (first + job.step * (number * APART % job.steps)).to_bytes(8)
            wire.sendall(frame)
            answer(wire)

        for number in range(PLAYED):
            one(number)
        walks = [_recorded(_Recorder(), partial(one, PLAYED + number), url) for number in range(PLAYED)]
        before = time.clock_gettime(clock)
        for number in range(timed):
            one(number)
        common, _ = Counter((each.acts, each.commands) for each in walks).most_common(1)[0]
        return next(each for each in walks if (each.acts, each.commands) == common), (
            time.clock_gettime(clock) - before
        ) / max(1, timed) * 1e6


async def _serve(url: str, port: int, then: Callable[[], None]) -> None:
    """Serve with one front-end until a function has run in a thread."""
    settings = ServeSettings(listeners=(ListenerSettings(port=port),), redis_url=url)
    stop, is_ready = anyio.Event(), anyio.Event()

    def ready(_: Serving) -> None:
        is_ready.set()

    with bind("127.0.0.1", port) as bound:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_listeners, Live(settings), url, [bound], stop, ready)
            await is_ready.wait()
            await anyio.to_thread.run_sync(then)
            stop.set()


async def _walk(names: Sequence[str], timed: int, found: dict[str, tuple[Walk, float]]) -> None:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        async with embedded_server(Path(directory)) as server:
            port = free_port()
            create, delete = admin_topics(f"127.0.0.1:{port}")
            target = Target(
                name="korvet", address=f"127.0.0.1:{port}", pids=(), ready_s=0, create_topic=create,
                delete_topic=delete, redis_url=server.url,
            )  # fmt: skip
            jobs: dict[str, calls.Job] = {}

            def prepare() -> None:
                jobs.update(stack.enter_context(calls.jobs(target, BATCHES, RECORDS, members=1)))

            def play() -> None:
                for name in names:
                    found[name] = _play(jobs[WALKS[name]], target.address, server.url, timed)
                stack.close()

            # The second front-end has no batch in memory.
            await _serve(server.url, port, prepare)
            await _serve(server.url, port, play)


def walk(names: Sequence[str], timed: int = 0) -> dict[str, tuple[Walk, float]]:
    """The walks of these requests, each with its microseconds of processor time in so many repetitions."""
    found: dict[str, tuple[Walk, float]] = {}
    anyio.run(_walk, names, timed, found, backend_options={"use_uvloop": True})
    return found


@click.command(help=(__doc__ or "").partition("\n\n")[0])
@click.argument("names", nargs=-1, type=click.Choice(list(WALKS)), metavar="[heartbeat|commit|produce|fetch]...")
@click.option("--all", "shows_all", is_flag=True, help="Print every function that was entered.")
def main(names: tuple[str, ...], shows_all: bool) -> None:
    for name, (one, us) in walk(names or list(WALKS), TIMED).items():
        click.echo(f"{name}: {one.frames} functions in {one.files} files, {one.depth} deep, {us:.0f} us of processor")
        click.echo(f"Redis: {', '.join(one.commands)}")
        for line in one.lines():
            click.echo(f"  {line}")
        for depth, function in one.called if shows_all else ():
            click.echo(f"  {'  ' * depth}{function.name}  {function.file}")


if __name__ == "__main__":
    main()
