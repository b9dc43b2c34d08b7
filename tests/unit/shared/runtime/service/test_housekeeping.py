"""Work beside the decisions of a service may fail, in any way, and goes on."""

import ast
import asyncio
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from elasticflow.shared.runtime.service import run_service
from elasticflow.shared.runtime.service.run_service import LAST_RETRY_S, keep_up

PACKAGE = Path(run_service.__file__).parents[3]
WITHOUT_WHICH_A_SERVICE_IS_NONE = {
    "services/executor/service.py": {"hosting", "worker_manager", "heartbeat"},
    "services/monitor/service.py": {"node-watch"},
}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those that the work waited, in no time."""
    paused: list[float] = []

    async def sleep(pause_s: float) -> None:
        paused.append(pause_s)

    monkeypatch.setattr(run_service.asyncio, "sleep", sleep)
    return paused


async def test_work_that_fails_in_any_way_is_counted_and_begun_again(pauses: list[float]) -> None:
    errors: list[Exception] = [RecursionError(), MemoryError(), OSError(28, "full"), ExceptionGroup("", [KeyError()])]
    num_errors, counted, log = len(errors), list[str](), CapturingLogger()

    async def work() -> None:
        if errors:
            raise errors.pop()

    await keep_up("sweep", work, log=log, count_failure=counted.append)
    assert counted == ["sweep"] * num_errors
    assert [call.kwargs["task"] for call in log.calls if call.args == ("HousekeepingFailed",)] == counted
    assert pauses == [1.0, 2.0, 4.0, 8.0]


async def test_its_pauses_are_bounded(pauses: list[float]) -> None:
    left = iter(range(20))

    async def work() -> None:
        if next(left, None) is not None:
            raise ValueError

    await keep_up("sweep", work, log=CapturingLogger())
    assert max(pauses) == LAST_RETRY_S


async def test_its_end_is_that_of_its_service() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(keep_up("sweep", work, log=CapturingLogger()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    "source", sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("services/*/service.py"))
)
def test_every_other_task_beside_a_host_is_housekeeping(source: str) -> None:
    tree = ast.parse((PACKAGE / source).read_text())
    unguarded = {
        ast.literal_eval(call.keywords[0].value)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "create_task"
        if "keep_up" not in ast.unparse(call.args[0])
    }
    assert unguarded == WITHOUT_WHICH_A_SERVICE_IS_NONE.get(source, set())
