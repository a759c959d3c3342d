"""Members that come and go, so that there are rebalances to disturb."""

from typing import Final

from scripts.chaosrun.load import Load
from scripts.chaosrun.processes import Process

GUESTS: Final = ("eager", "cooperative", "uniform")


class Guest:
    """A fifth member of a group, there or not."""

    def __init__(self, load: Load, group: str) -> None:
        self._load, self._group = load, group
        self._process: Process | None = None

    def toggle(self) -> None:
        """Let the member come, or go."""
        if self._process is None:
            self._process = self._load.add_members(self._group, [f"{self._group}-guest"])
        else:
            self.go()

    def go(self) -> None:
        """Let the member leave if it is there."""
        if self._process is not None:
            self._load.take_away(self._group, self._process, crash=False)
            self._process = None

    def has_settled(self) -> bool:
        """True if the group is Stable with its current members."""
        return self._load.is_settled(self._group)


def generations(load: Load) -> dict[str, int]:
    """The generation of each group."""
    return {name: state.generation for name, state in load.states().items()}


def await_rebalance(load: Load, group: str, before: int) -> None:
    """Wait until the group rebalances, or has already.

    :param before: the generation before a member came or went.
    """
    load.until(
        lambda: (now := load.states()[group]).state != "Stable" or now.generation != before,
        lambda: f"{group} did not begin to rebalance",
        poll_s=0.005,
    )
