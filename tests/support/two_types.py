"""A pool with GPUs of two types: the second is half as fast."""

from typing import Any

from elasticflow.services.admission.policy import POLICY
from elasticflow.shared.messages.commands import ReserveQuote
from tests.support.histories import LINEAR, NOW_S, History, spec
from tests.support.worker_events import joined

SLOWER = {num_gpus: rate / 2 for num_gpus, rate in LINEAR.items()}
BOTH = {"linear/b64": LINEAR, "linear/b64@P100": SLOWER}


def two_types(*, fast: int = 4, slow: int = 4, **config: Any) -> History:
    """A node with V100 and one with P100. Jobs of the usual spec have curves on both."""
    history = History().configured(**{"curves": BOTH} | config)
    return history.then(
        joined("one", "node-0", num_gpus=fast, gpu_type="V100"),
        joined("two", "node-1", num_gpus=slow, gpu_type="P100"),
    )


def type_of(history: History, job_id: str) -> str:
    """As recorded: "" is V100."""
    found = history.state.live_jobs[job_id].spec
    assert found is not None
    return found.gpu_type


def due_in(seconds: float, **changes: Any) -> dict[str, Any]:
    """Fields of a spec."""
    return {"deadline_s": NOW_S + seconds, **changes}


def answer(history: History, *commands: Any, now_s: float = NOW_S) -> Any:
    """The only event of admission's decision."""
    (event,) = history.decided(POLICY, *commands, now_s=now_s)
    return event


def reserve(job_id: str = "q", *, tenant: str = "lab", **changes: Any) -> ReserveQuote:
    return ReserveQuote(job_id=job_id, tenant=tenant, spec=spec(**changes), reserve_s=60.0)
