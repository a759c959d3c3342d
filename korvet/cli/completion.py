"""``korvet completion``: a script for a shell that completes commands and flags."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for a shell.

    \b
    bash:  eval "$(korvet completion bash)"            in ~/.bashrc
    zsh:   eval "$(korvet completion zsh)"             in ~/.zshrc
    fish:  korvet completion fish > ~/.config/fish/completions/korvet.fish
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root()
    completer = get_completion_class(shell)
    assert completer is not None, shell
    click.echo(completer(root.command, {}, "korvet", "_KORVET_COMPLETE").source())
