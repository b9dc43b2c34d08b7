"""Commands of benchmarks run in the process of the tests, and leave its logs as they are."""

import pytest
import structlog


@pytest.fixture(autouse=True)
def logs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that shows errors only would hide the warnings that later tests of this process expect."""
    monkeypatch.setattr(structlog, "configure", lambda **_: None)
