"""How a service's process ends tells its supervisor whether another start can help."""

from typing import Any

import pytest

from shared.errors import BadCredentials, ElasticFlowError, Unavailable
from shared.runtime import service


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

    monkeypatch.setattr(service, "_run", fail)
    with pytest.raises(SystemExit) as ended:
        service.run_service("admission", fail)
    assert ended.value.code == status
    assert str(failure) in capsys.readouterr().err
