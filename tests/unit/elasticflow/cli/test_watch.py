"""`eflow watch` on a narrow terminal: Ctrl-C leaves each row of the last picture once."""

import io
import re

import pytest
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from elasticflow.cli.watch import frame, picture
from testbed.histories import NOW_S, History

WIDTH = 40
_MOVE = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[\?25[lh]|(.)", re.DOTALL)


class Screen:
    """What a terminal shows of what is written: lines that wrap, cursor up, and erased lines."""

    def __init__(self) -> None:
        self.rows: list[str] = [""]
        self.row = self.column = 0

    def write(self, text: str) -> None:
        for count, command, character in _MOVE.findall(text):
            if command == "A":
                self.row -= int(count or 1)
            elif command == "K":
                self.rows[self.row] = ""
            elif character == "\r":
                self.column = 0
            elif character == "\n":
                self._down()
            elif character:
                if self.column == WIDTH:
                    self._down()
                self.rows[self.row] = self.rows[self.row][: self.column].ljust(self.column) + character
                self.column += 1

    def _down(self) -> None:
        self.row, self.column = self.row + 1, 0
        self.rows += [""] * (self.row == len(self.rows))


@pytest.mark.parametrize("silent_s", [0.0, 60.0])
@pytest.mark.parametrize("width", [11, WIDTH - 1, WIDTH])
def test_ctrl_c_leaves_no_row_twice(silent_s: float, width: int) -> None:
    screen, out = Screen(), io.StringIO()
    terminal = Console(file=out, width=WIDTH, height=100, force_terminal=True, color_system=None)
    shown = Group(picture(History().state, NOW_S), Text("n" * width))  # the last row, as that of a table of nodes
    with Live(console=terminal, auto_refresh=False) as live:
        live.update(frame(shown, NOW_S, NOW_S + silent_s), refresh=True)
        screen.write(out.getvalue())
        written = len(out.getvalue())
        screen.write("^C")
    screen.write(out.getvalue()[written:])
    assert [row.strip() for row in screen.rows if "GPUs in use" in row] == ["08:00:00   0/0 GPUs in use   0 jobs"]
    assert "^C" not in "".join(screen.rows)
