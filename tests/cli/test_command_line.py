"""The rules for every command: exit codes, errors of one line, the nearest name, quick help."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from korvet.cli import korvet, run
from korvet.cli.kafka.framing import answer_class, decode, encode, request
from korvet.errors import KorvetError

ROOT = Path(__file__).resolve().parents[2]
KORVET = [sys.executable, "-m", "korvet.cli"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["topcis"], "korvet: no such command 'topcis'. Did you mean 'topics'?"),
        (["topics", "lst"], "korvet: no such command 'lst'. Did you mean 'list'?"),
        (["topics", "list", "--jsn"], "korvet: no such option '--jsn'. Did you mean '--json'?"),
        (["cluster"], "korvet: no such command 'cluster'; see korvet --help"),
        (["topics", "consume", "--topic", "t"], "korvet: there is no --topic; the name of the topic is a word of its"),
        (["topics", "produce", "--topic", "t"], "korvet: there is no --topic; the name of the topic is a word of its"),
        (["topics", "consume", "t", "--from-beginning"], "korvet: there is no --from-beginning; without --offset it"),
        (["topics", "consume", "-f", "%s\\n", "t"], "korvet: -f is --follow here; the form of records is --format"),
        (["topics", "consume", "t", "-f", "json"], "korvet: -f is --follow here; the form of records is --format"),
        (["topics", "create"], "korvet: missing argument 'NAME…'; see korvet topics create --help"),
        (
            ["topics", "create", "t", "--config", "x"],
            "korvet: invalid value for '--config': 'x' is not of the form NAME=VALUE; see korvet topics create --help",
        ),
        (["groups", "reset-offsets", "g", "--all-topics"], "korvet: name the goal: exactly one of --to-earliest,"),
        (["groups", "reset-offsets", "g", "--to-latest"], "korvet: name the topics to reset: --topic TOPIC"),
        (
            ["groups", "reset-offsets", "g", "--all-topics", "--to-datetime", "soon"],
            "korvet: 'soon' is no time: want ISO 8601 such as 2026-01-31T12:00:00+01:00",
        ),
        (["serve", "--listen", "9092"], "korvet: --listen: '9092' is not HOST:PORT"),
        (["serve", "--config", "nowhere.toml"], "korvet: cannot read config file nowhere.toml: No such file"),
        (["doctor", "--redis", "http://x"], "korvet: Redis URL 'http://x': the scheme is one of"),
        (["serve", "--redis", "http://x"], "korvet: --redis: Redis URL 'http://x': the scheme is one of"),
        (
            ["serve", "--redis", "127.0.0.1:6379"],
            "korvet: --redis: Redis URL: it has no scheme; want, for example, redis://",
        ),
        (["serve", "--redis", "redis://[::1"], "korvet: --redis: Redis URL: invalid ipv6 url"),
        (["serve", "--namespace", ""], "korvet: --namespace: it may not be empty"),
        (["topics", "list", "-b", "x:y"], "korvet: 'x:y' is not HOST:PORT"),
    ],
)
def test_misunderstood_command_is_one_line_and_exit_code_2(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(line)
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("variable", "value", "arguments", "line"),
    [
        ("KORVET_LISTEN", "9092", ["serve"], "'9092' is not HOST:PORT"),
        ("KORVET_WORKERS", "many", ["serve"], "'many' is not a valid integer range"),
        ("KORVET_REDIS", "http://x", ["serve"], "Redis URL 'http://x': the scheme is one of"),
        ("KORVET_REDIS", "http://x", ["doctor"], "Redis URL 'http://x': the scheme is one of"),
        ("KORVET_LOG_LEVEL", "loud", ["serve"], "'loud' is not one of"),
        ("KORVET_BOOTSTRAP_SERVER", "x:y", ["topics", "list"], "'x:y' is not HOST:PORT"),
    ],
)
def test_error_names_the_environment_variable_that_the_value_came_from(
    variable: str,
    value: str,
    arguments: list[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, value)
    assert run(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"korvet: environment variable {variable}: {line}"), shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["serve"], ["LISTEN", "REDIS", "CONFIG", "CONSOLE_CONFIG", "TLS_KEY", "LOG_FORMAT"]),
        (["topics", "list"], ["BOOTSTRAP_SERVER", "CLIENT_CONFIG"]),
        (["console"], ["CONSOLE_LISTEN", "REDIS"]),
        (["users", "list"], ["BOOTSTRAP_SERVER", "REDIS", "DATA_DIR"]),
    ],
)
def test_help_names_the_environment_variables(
    words: list[str], variables: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert [name for name in variables if f"[env var: KORVET_{name}" not in shown] == []


def test_unknown_environment_variable_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KORVET_LISTN", "KORVET_PORT_9092_TCP_ADDR", "KORVET_SERVICE_HOST", "KORVET_PORT", "KORVET_CONFIG"):
        monkeypatch.setenv(name, "x")
    assert run(["completion", "bash"]) == 0
    assert capsys.readouterr().err == (
        "korvet: environment variable KORVET_LISTN means nothing to korvet; did you mean KORVET_LISTEN?\n"
    )


@pytest.mark.parametrize("given", [{"name": "n" * 40_000}, {"name": "\udcff"}, {"num_partitions": 1 << 31}])
def test_value_that_no_request_can_hold_is_an_error_in_words(given: dict[str, Any]) -> None:
    topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, **given}
    with pytest.raises(KorvetError, match="given does not fit into CreateTopics: "):
        encode(request("create_topics", 4, topics=[topic], timeout=1), 1, "korvet")


def test_older_answer_has_the_defaults_of_later_fields() -> None:
    frame = bytes(11) + b"\x02" + b"\x02g" + b"\x01" + b"\x07Stable" + bytes(2)
    (found,) = decode(answer_class("list_groups", 4), frame).groups
    assert (found.group_id, found.group_state, found.group_type) == ("g", "Stable", "")
    with pytest.raises(AttributeError, match="ListedGroup of list_groups has no typo in any version"):
        _ = found.typo


def test_missing_broker_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "list", "-b", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == (
        "korvet: no broker answers at 127.0.0.1:1: Connection refused; "
        "start one with 'korvet serve', or name another with --bootstrap-server\n"
    )


def test_missing_redis_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--redis", "redis://127.0.0.1:1"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("korvet: cannot use Redis at 127.0.0.1:1: ")
    assert shown.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["topics"], ["groups"], ["functions"], ["config"]])
def test_group_without_a_command_shows_its_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "Commands:" in capsys.readouterr().err


def commands(of: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """The words of every command."""
    if not isinstance(of, click.Group):
        yield path
    for name, command in of.commands.items() if isinstance(of, click.Group) else ():
        yield from commands(command, *path, name)


@pytest.mark.parametrize("words", list(commands(korvet)), ids=" ".join)
def test_help_of_each_command_has_an_example_of_it(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    assert f"korvet {' '.join(words)}" in capsys.readouterr().out.partition("\n")[2]


def test_commands_that_destroy_something_need_execute_and_are_those_that_the_page_names() -> None:
    found = {words: command_of(words) for words in commands(korvet)}
    own = {words for words, command in found.items() if {"dry_run", "execute"} <= {one.name for one in command.params}}
    assert own >= {words for words in found if words[-1] in ("delete", "remove", "trim", "reset-offsets", "repair")}
    rule = (ROOT / "docs/cli.md").read_text().partition("**What destroys something**")[2].partition("Without it")[0]
    assert {tuple(words.split()) for words in re.findall("`([a-z].*?)`", rule)} == own


def command_of(words: tuple[str, ...]) -> click.Command:
    command: click.Command = korvet
    for word in words:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    return command


@pytest.mark.parametrize("words", [[], ["topics"], ["groups"], ["pipeline"], ["tenants"]])
def test_summaries_in_lists_of_commands_are_whole(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


def test_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("korvet ")


@pytest.mark.parametrize(("shell", "sign"), [("bash", "complete "), ("zsh", "#compdef"), ("fish", "complete ")])
def test_completion_script_is_printed_for_each_shell(shell: str, sign: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert sign in capsys.readouterr().out


def test_shell_completes_commands() -> None:
    environment = {
        **os.environ,
        "_KORVET_COMPLETE": "bash_complete",
        "COMP_WORDS": "korvet topics cr",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(KORVET, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "plain,create\n"


def test_ctrl_c_exits_130_without_a_traceback() -> None:
    """A listener that never answers holds the command until it is interrupted."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        command = [*KORVET, "topics", "list", "-b", f"127.0.0.1:{port}"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()
        with connection, process:
            try:
                connection.recv(1)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=120)
            finally:
                process.kill()
    assert (process.returncode, out, err.strip()) == (130, "", "")


def test_reader_that_goes_away_is_no_traceback() -> None:
    process = subprocess.Popen([*KORVET, "config", "list"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=120) in (0, 1)
