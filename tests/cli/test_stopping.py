"""Signals that stop a command."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from korvet.cli.ground import stopping
from korvet.cli.ground.stopping import STOPPING, stopped_in_order


@pytest.fixture(autouse=True)
def as_a_terminal_starts_it() -> Iterator[None]:
    """Under nohup the tests ignore SIGHUP, and whoever runs them may handle SIGINT."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOPPING}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("again", sorted(STOPPING))
@pytest.mark.parametrize("number", sorted(STOPPING))
def test_signal_that_comes_again_at_once_does_not_cut_the_end_off(number: signal.Signals, again: int) -> None:
    """timeout(1) sends its signal to the process and then to its group."""
    done = []
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit), stopped_in_order():
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), again)
            done.append("left the group")
    assert done


def test_signal_that_comes_again_later_cuts_the_end_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_SAME_S", 0.01)
    with pytest.raises(SystemExit, match=str(128 + signal.SIGHUP)), stopped_in_order():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGHUP)
            pytest.fail("the second signal did nothing")


def test_ignored_signal_ends_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stopped_in_order():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
