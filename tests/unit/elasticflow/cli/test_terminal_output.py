"""Results on a terminal: no text of a job commands it."""

import sys

import pytest

from elasticflow.cli.terminal_output import note, say_line
from tests.unit.elasticflow.cli.test_progress import Terminal

HOSTILE = "failed: \x1b]52;c;aGk=\x07\x9b2J\ttab\x1b[31mred\x1b[0m"
HARMLESS = r"failed: \x1b]52;c;aGk=\x07\x9b2J" + "\ttab\x1b[31mred\x1b[0m\n"


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    say_line(HOSTILE)
    note(HOSTILE)
    say_line(HOSTILE, "red")
    assert (out.getvalue().partition("\n")[0] + "\n", err.getvalue()) == (HARMLESS, HARMLESS)
    assert "\x1b]52" not in out.getvalue()


def test_a_file_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    say_line(HOSTILE)
    note(HOSTILE)
    assert capsys.readouterr() == (HOSTILE + "\n", HOSTILE + "\n")
