"""The command line. Its exit code is 0 if the command succeeded, 1 if it failed, 2 if its words are wrong.

Commands import their modules inside their functions, so that help, errors and completion come at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

import click

from korvet import __version__
from korvet.cli.acls import acls
from korvet.cli.apply import apply
from korvet.cli.completion import completion
from korvet.cli.config import config
from korvet.cli.console import console
from korvet.cli.doctor import doctor
from korvet.cli.embedded_repair import repair
from korvet.cli.functions import functions
from korvet.cli.ground.environment import unknown_variables, variable_of
from korvet.cli.ground.options import HELP_NAMES
from korvet.cli.ground.output import say_error, say_note
from korvet.cli.groups import groups
from korvet.cli.pipeline import pipeline
from korvet.cli.quotas import quotas
from korvet.cli.serve import serve
from korvet.cli.tenants import tenants
from korvet.cli.tier import tier
from korvet.cli.topics import topics
from korvet.cli.users import users
from korvet.errors import ConfigError, KorvetError

OK, FAILED, MISUNDERSTOOD, INTERRUPTED = 0, 1, 2, 130
_NEAR = 0.7
"""The similarity from which a name is suggested: "cluster" does not suggest "users"."""


@click.group(context_settings=HELP_NAMES)
@click.version_option(__version__, "-V", "--version", prog_name="korvet", message="%(prog)s %(version)s")
def korvet() -> None:
    """A Kafka-protocol broker whose state lives in Redis.

    'korvet serve' starts a broker. 'topics' and 'groups' talk to a running one, as any Kafka client does; so do
    'users', 'acls' and 'quotas', which also reach Redis. 'tenants', 'functions', 'apply' and 'doctor' talk to Redis.
    'tier' reads a bucket, and 'pipeline' moves topics to a lake and back.
    """
    for sentence in unknown_variables(korvet):
        say_note(f"korvet: {sentence}")


for command in (
    serve, topics, groups, users, acls, quotas, tenants, tier, functions, apply, doctor, repair, console, pipeline,
    config, completion,
):  # fmt: skip
    korvet.add_command(command)


def _complete_help(command: click.Command) -> None:
    """Have help name each flag's environment variable, and lists of commands show whole first sentences.

    Click would hide the variables and cut the sentences.
    """
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            parameter.show_envvar = parameter.name != "help"
    for one in command.commands.values() if isinstance(command, click.Group) else ():
        one.short_help = " ".join((one.help or "").partition("\n\n")[0].split())
        _complete_help(one)


_complete_help(korvet)


def main() -> None:
    """Run the command of this process's arguments and exit."""
    code = run(sys.argv[1:])
    if "obstore" in sys.modules:
        # A thread of obstore that ends a cancelled request while the interpreter ends would abort the process:
        # https://github.com/PyO3/pyo3-async-runtimes/issues/40
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; an error is one line on stderr."""
    try:
        outcome = korvet.main(arguments, prog_name="korvet", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return MISUNDERSTOOD
    except click.UsageError as error:
        return _misunderstood(error)
    except click.ClickException as error:
        say_error(error.format_message())
        return error.exit_code
    except (ConfigError, KorvetError) as error:
        say_error(str(error))
        return MISUNDERSTOOD if isinstance(error, ConfigError) else FAILED
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has seen enough; without this, Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return outcome if isinstance(outcome, int) else OK


def _misunderstood(error: click.UsageError) -> int:
    path = error.ctx.command_path if error.ctx is not None else "korvet"
    message = _named(error).rstrip(".")
    say_error(f"{message[:1].lower()}{message[1:]}{'' if message.endswith('?') else ';'} see {path} --help")
    return MISUNDERSTOOD


def _named(error: click.UsageError) -> str:
    """The error's message, which names the environment variable instead of the flag if the value came from one.

    For a mistyped name it has the nearest one, and for Kafka's flag of a topic the word that it is here.
    """
    if isinstance(error, click.NoSuchOption) and error.option_name == "--topic":
        return "there is no --topic; the name of the topic is a word of its own"
    if isinstance(error, click.NoSuchOption | click.exceptions.NoSuchCommand):
        wrong = error.option_name if isinstance(error, click.NoSuchOption) else error.command_name
        near = get_close_matches(wrong, error.possibilities or (), 1, _NEAR)
        return f"{error.message} Did you mean {near[0]!r}?" if near else error.message
    if isinstance(error, click.BadParameter) and error.param is not None and error.ctx is not None:
        variable = variable_of(error.param, error.ctx)
        if variable is not None:
            return f"environment variable {variable}: {error.message}"
    return error.format_message()
