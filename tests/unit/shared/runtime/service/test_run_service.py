"""How a service's process ends tells its supervisor whether another start can help."""

from typing import Any

import pytest
import structlog
from prometheus_client import generate_latest

from elasticflow.shared.errors import BadCredentials, BadSettings, ElasticFlowError, Unavailable
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.process.settings import Settings
from elasticflow.shared.runtime.service import run_service


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["services/admission/__main__.py"])


@pytest.mark.parametrize(("argument", "status", "said"), [("--help", 0, "NATS_URL"), ("--port=1", 2, "--port=1")])
def test_a_service_takes_no_arguments_and_says_what_it_takes(
    argument: str, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["services/admission/__main__.py", argument])
    with pytest.raises(SystemExit) as ended:
        run_service.run_service("admission", lambda settings: pytest.fail("it starts"))
    assert ended.value.code == status
    assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("failure", "status"), [(Unavailable("nats://here", "it is gone"), 1), (BadCredentials("nats://here"), 2)]
)
@pytest.mark.parametrize("in_group", [False, True])
def test_only_what_another_start_cannot_mend_ends_with_2(
    failure: ElasticFlowError,
    status: int,
    in_group: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def fail(*_: Any) -> None:
        raise ExceptionGroup("tasks", [failure]) if in_group else failure

    monkeypatch.setattr(run_service, "_run", fail)
    with pytest.raises(SystemExit) as ended:
        run_service.run_service("admission", lambda settings: fail)
    assert ended.value.code == status
    assert str(failure) in capsys.readouterr().err


def test_wrong_settings_of_its_own_end_a_service_before_it_waits_for_nats(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def wait_for_nats(*_: Any) -> None:
        raise AssertionError("it connects")

    def configured(_: Settings) -> Any:
        raise BadSettings(problems=("EF_SLOTS='abc': must be a number",))

    monkeypatch.setattr(run_service, "_run", wait_for_nats)
    with pytest.raises(SystemExit) as ended:
        run_service.run_service("executor", configured)
    assert ended.value.code == 2
    assert "EF_SLOTS='abc'" in capsys.readouterr().err


async def test_who_waits_for_nats_says_so_ever_more_rarely_and_when_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections: list[int] = []

    class BusWithoutJetStream:
        num_asked = 0

        async def ensure_pool(self, pool: str) -> None:
            self.num_asked += 1
            if self.num_asked <= 20:
                raise Unavailable("nats://here", "JetStream is off")

    async def connect(url: str, **_: Any) -> BusWithoutJetStream:
        connections.append(1)
        if len(connections) <= 20:
            raise Unavailable(url, "refused")
        return BusWithoutJetStream()

    monkeypatch.setattr(run_service, "connect_nats", connect)
    monkeypatch.setattr(run_service, "CONNECT_RETRY_S", 0.0)
    with structlog.testing.capture_logs() as lines:
        await run_service._connected("monitor", Settings.from_environment({}), log, Metrics("monitor", "lab"))
    assert [line["tries"] for line in lines if line["log_level"] == "warning"] == [1, 2, 4, 8, 16, 32]
    assert lines[-1] == {"event": "nats is not ready: over", "tries": 40, "log_level": "info"}
    assert len(connections) == 21, "one connection is kept while JetStream is awaited"


class FakeBus:
    async def ensure_pool(self, pool: str) -> None: ...


async def test_the_metric_of_the_connection_follows_a_break_and_the_return(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: dict[str, Any] = {}

    async def connect(url: str, **options: Any) -> FakeBus:
        reported.update(options)
        return FakeBus()

    monkeypatch.setattr(run_service, "connect_nats", connect)
    metrics = Metrics("monitor", "lab")
    await run_service._connected("monitor", Settings.from_environment({}), log, metrics)
    shown: list[bool] = []
    for state in ("connected", "disconnected", "reconnected", "closed"):
        reported["on_state"](state)
        shown.append(b'ef_nats_connected{pool="lab",service="monitor"} 1.0' in generate_latest(metrics.registry))
    assert shown == [True, False, True, False]
