"""One process of clients: started with a job, ended by the end of its stdin, or killed."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, Literal

from scripts.chaosrun.jobs import Job
from tests.kafka.builds import JAVA_VERSIONS, java_command
from tests.kafka.example_builds import go_program

Program = Literal[
    "confluent",
    "aiokafka",
    "java",
    "java-4.4",
    "producers",
    "share-librdkafka",
    "share-java",
    "share-go",
    "bank-orders",
    "bank-teller",
    "bank-clerk",
    "bank-java",
    "bank-balances",
]
ROOT: Final = Path(__file__).resolve().parents[2]
LEAVE_WITHIN_S: Final = 90.0
_MODULES: Final = {
    "confluent": "confluent_members",
    "aiokafka": "aiokafka_members",
    "producers": "producers",
    "share-librdkafka": "queue.members",
    "bank-orders": "bank.orders",
    "bank-teller": "bank.teller",
    "bank-clerk": "bank.clerk",
    "bank-balances": "bank.balances",
}
_CLASSES: Final = {
    "java": "korvet.driver.Chaos",
    "java-4.4": "korvet.driver.Chaos",
    "share-java": "korvet.driver.Chaos",
    "bank-java": "korvet.driver.Clerk",
}
# Share groups are a preview in the pom's version.
_CLIENTS: Final = dict.fromkeys(("java-4.4", "share-java"), JAVA_VERSIONS["java-4.4"])


def command(program: Program) -> list[str]:
    """The command that runs the program, without its job. The first use of Java compiles it, which may take a
    minute."""
    if program == "share-go":
        return go_program("share")
    if program in _CLASSES:
        return java_command(_CLASSES[program], clients=_CLIENTS.get(program))
    return [sys.executable, "-m", f"scripts.chaosrun.{_MODULES[program]}"]


class Process:
    """A process of the job's clients. Its stdout and stderr are in `output`."""

    def __init__(self, program: Program, job: Job, output: Path) -> None:
        self.names = job.names
        self.output = output
        with open(output, "ab") as sink:
            self._process = subprocess.Popen(
                [*command(program), job.to_json()],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def pause(self) -> None:
        """Stop it (SIGSTOP) until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def ask_to_leave(self) -> None:
        """Let the clients close, as at the end of an application."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def await_end(self) -> int:
        """The exit code. A process that does not end is killed, which gives -9."""
        try:
            return self._process.wait(LEAVE_WITHIN_S)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """End it as a crash would: the members do not leave their groups."""
        assert self._process.stdin is not None
        self._process.kill()
        self._process.stdin.close()
        return self._process.wait()

    def last_words(self) -> str:
        return self.output.read_text(errors="replace")[-2000:]
