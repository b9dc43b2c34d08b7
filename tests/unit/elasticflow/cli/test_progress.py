"""Progress bars: on a terminal only, and never on stdout."""

import io
import sys

import pytest

from elasticflow.cli.terminal_output import progress_bar, with_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_pipe_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("messages") as advance:
        advance(1, 2)
    assert list(with_progress([1, 2], "messages")) == [1, 2]
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_how_much_is_done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("messages") as advance:
        for number in range(1, 51):
            advance(number, 50)
    assert "50/50" in terminal.getvalue()
    assert "messages" in terminal.getvalue()
    assert capsys.readouterr().out == ""
