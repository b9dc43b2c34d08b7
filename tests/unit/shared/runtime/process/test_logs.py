"""Logs for people: without colour where they do not want it, and without the values of variables."""

import io
from collections.abc import Iterator

import pytest
import structlog

from elasticflow.shared.runtime.process.logs import configure_logs, log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def configuration() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_has_colour_unless_no_color_is_set(no_color: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    terminal = Terminal()
    configure_logs(stream=terminal)
    log.info("Started")
    assert ("\x1b[" in terminal.getvalue()) == (not no_color)


def test_a_traceback_has_no_values_of_variables() -> None:
    stream = io.StringIO()
    configure_logs("console", stream=stream)
    try:
        secret = "value-" + "1"
        raise ValueError(len(secret))
    except ValueError:
        log.exception("Failed")
    assert "ValueError: 7" in stream.getvalue()
    assert "value-1" not in stream.getvalue()
