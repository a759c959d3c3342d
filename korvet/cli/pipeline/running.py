"""The frame of every verb: the check of packages, Spark's start and end, signals, and errors of one line."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from types import FrameType
from typing import IO, TYPE_CHECKING, Final

import click

from korvet.cli.ground.output import say_error, say_note
from korvet.cli.pipeline.options import Common
from korvet.errors import KorvetError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql import SparkSession

_PACKAGES: Final = ("pyspark", "delta", "confluent_kafka", "pyarrow", "pandas", "matplotlib")
_FAILED: Final = 1
_INTERRUPTED: Final = 130
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR: Final = "\x1b[?25h"


def need_packages() -> None:
    """Name the packages to install if korvet's extra ``spark`` is missing.

    :raises KorvetError:
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise KorvetError(
            f"the pipeline needs packages that are not installed here ({', '.join(missing)}); "
            f"run: {Path(sys.executable).name} -m pip install 'korvet[spark]'"
        )


def end(failures: Iterable[Exception], *, is_cut: bool = False) -> None:
    """Name what failed, and end the verb with the code for that, or for work that is left."""
    code = _INTERRUPTED if is_cut else 0
    for failure in failures:
        say_error(str(failure))
        code = _FAILED
    if code:
        raise click.exceptions.Exit(code)


@contextmanager
def spark_session(common: Common, verb: str) -> Iterator[SparkSession]:
    """Spark for one verb, whose log goes to stderr. An error within becomes a sentence, unless ``--debug`` asks for all
    of it.

    :raises KorvetError: if a package is missing, Spark does not start, or the verb fails.
    """
    from korvet.cli.pipeline.progress import log_to_stderr

    log_to_stderr(common)
    need_packages()
    from korvet.pipeline.failures import failure

    try:
        with _started(common, verb) as session:
            yield session
    except (click.ClickException, click.exceptions.Exit):
        raise
    except KorvetError as error:
        if common.debug:
            traceback.print_exception(error)
        raise
    except Exception as error:
        if common.debug:
            raise
        raise failure(error) from None


@contextmanager
def _started(common: Common, verb: str) -> Iterator[SparkSession]:
    """A session that ends with the verb, unless it existed before."""
    from pyspark.sql import SparkSession

    from korvet.pipeline.session import make_session

    name = f"korvet pipeline {verb}"
    if SparkSession.getActiveSession() is not None:
        yield make_session(name, settings=common.spark)
        return
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit's own JVM: its log goes where the cluster's do.
        session = make_session(name, settings=common.spark)
    else:
        session = _own_session(common, name)
    try:
        yield session
    finally:
        # A JVM that has died needs no stop.
        with suppress(Exception):
            session.stop()


def _own_session(common: Common, name: str) -> SparkSession:
    from korvet.cli.pipeline.progress import is_live
    from korvet.pipeline.session import make_session

    _need_java()
    if is_live(common):
        say_note("starting Spark; the first time it fetches Delta's jars")
    with _noise_kept(common.debug) as noise, _ended_at_once():
        try:
            session = make_session(name, common.master, common.spark)
        except KorvetError:
            raise
        except Exception as error:
            if common.debug:
                raise
            raise KorvetError(_why_not_started(noise, error)) from None
    session.sparkContext.setLogLevel("WARN" if common.debug else "OFF")
    return session


def _need_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home and not os.access(Path(home) / "bin" / "java", os.X_OK):
        raise KorvetError(f"JAVA_HOME is {home}, which has no bin/java; set it to a Java of version 17 or newer")
    if not home and which("java") is None:
        raise KorvetError(
            "Spark needs Java 17 or newer and there is none; install one (Debian, Ubuntu: apt install "
            "default-jre-headless; macOS: brew install openjdk), or name its directory in JAVA_HOME"
        )


@contextmanager
def _noise_kept(shown: bool) -> Iterator[IO[bytes] | None]:
    """An unnamed file for the output of a JVM that starts within the block."""
    if shown:
        yield None
        return
    with tempfile.TemporaryFile() as noise:
        sys.stdout.flush(), sys.stderr.flush()
        kept = {stream: os.dup(stream) for stream in (1, 2)}
        for stream in kept:
            os.dup2(noise.fileno(), stream)
        try:
            yield noise
        finally:
            for stream, copy in kept.items():
                os.dup2(copy, stream)
                os.close(copy)


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """While Spark starts, let Ctrl-C and SIGTERM end the process without an exception.

    On an exception PySpark deletes the file to which the JVM is about to write, and the JVM then stays for good.
    Without one the JVM ends with its standard input.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        os._exit(_INTERRUPTED)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            # PySpark has set a handler of its own for Ctrl-C, once it has a session.
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)


def _why_not_started(noise: IO[bytes] | None, error: Exception) -> str:
    said = ""
    if noise is not None:
        noise.seek(0)
        said = noise.read().decode(errors="replace")
    if "UnsupportedClassVersionError" in said or "Unrecognized option" in said:
        return "Spark needs Java 17 or newer, and the Java here is older: name another in JAVA_HOME"
    unfetched = re.search(r"(?:unresolved dependency|download failed): (\S+)#(\S+);([^\s:!]+)", said)
    if unfetched is not None:
        return (
            f"package {':'.join(unfetched.groups())} could not be fetched from Maven Central; see that it is there and "
            "can be reached, or give all jars, also Delta's, with --conf spark.jars=PATH,PATH"
        )
    # Java names the refused option just before.
    refused = re.search(r"(.+)\nError: Could not create the Java Virtual Machine", said)
    if refused is not None:
        return f"Java does not start with these options: {refused[1]}; see --conf, or --config's [pipeline.spark]"
    lines = [line.strip() for line in said.splitlines() if "Exception" in line or "rror:" in line]
    from korvet.pipeline.failures import failure

    return f"Spark did not start: {lines[0] if lines else failure(error)}; --debug shows its log"


@contextmanager
def served_figures(address: tuple[str, int] | None) -> Iterator[CollectorRegistry | None]:
    """A registry whose figures Prometheus can scrape at a host and port until the block ends; None without an address.

    :raises KorvetError: if this process cannot listen there.
    """
    if address is None:
        yield None
        return
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    host, port = address
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise KorvetError(f"cannot listen at {host}:{port} for metrics: {error.strerror}") from None
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, once Spark runs; a second signal ends the process at once.

    A thread sets it. A handler could not: Python runs it in the main thread, which may hold the event's lock, or which
    the signal met just before a long wait.
    """
    stop = threading.Event()
    signals, waking = socket.socketpair()
    waking.setblocking(False)
    follower = threading.Thread(target=_follow, args=(signals, stop), name="signals", daemon=True)
    follower.start()
    before = {number: signal.signal(number, lambda number, frame: None) for number in _SIGNALS}
    former = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(former)
        for number, handler in before.items():
            signal.signal(number, handler)
        waking.close()
        follower.join()
        signals.close()


def _follow(signals: socket.socket, stop: threading.Event) -> None:
    """Set the event at the first signal and end the process at the second, until the other end is closed."""
    while number := signals.recv(1):
        if number[0] not in _SIGNALS:
            continue
        if stop.is_set():
            if sys.stderr.isatty() and select.select([], [2], [], 0)[1]:
                os.write(2, _SHOW_CURSOR.encode())
            # The JVM ends with its standard input.
            os._exit(_INTERRUPTED)
        stop.set()
        # A note for a pipe that takes nothing would keep this thread from the second signal. sys.stderr may be a
        # progress display, which would draw over a note that another stream writes.
        if select.select([], [2], [], 0)[1]:
            sys.stderr.write("korvet: ending after the running work; a second signal ends at once\n")
