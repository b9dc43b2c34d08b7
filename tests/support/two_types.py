"""A pool with GPUs of two types: the second is half as fast."""

from typing import Any, Literal

from elasticflow.services.admission.policy import POLICY
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import ReserveQuote
from elasticflow.shared.messages.measurements import SingleGpuStepTimes, counts_to_measure
from testbed.histories import LINEAR, NOW_S, History, spec
from tests.support.worker_events import joined

SLOWER = {num_gpus: rate / 2 for num_gpus, rate in LINEAR.items()}
BOTH = {"linear/b64": LINEAR, "linear/b64@P100": SLOWER}


def two_types(*, fast: int = 4, slow: int = 4, types: tuple[str, str] = ("V100", "P100"), **config: Any) -> History:
    """A node with V100 and one with P100. Jobs of the usual spec have curves on both."""
    curves = {"linear/b64": LINEAR, f"linear/b64@{types[1]}": SLOWER}
    history = History().configured(**{"curves": curves} | config)
    return history.then(
        joined("one", "node-0", num_gpus=fast, gpu_type=types[0]),
        joined("two", "node-1", num_gpus=slow, gpu_type=types[1]),
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


def with_step_times(
    history: History, reproducible: Literal["bitwise", "fast"] = "fast", num_virtual_nodes: int = 16
) -> History:
    """The usual spec is measured on one GPU of each type: its steps are proportional to their virtual nodes."""
    others = ((f"linear/b64@{gpu_type}", SLOWER) for gpu_type in history.state.gpu_types[1:])
    for key, curve in (("linear/b64", LINEAR), *others):
        step_s = {count: count / num_virtual_nodes / curve[1] for count in counts_to_measure(num_virtual_nodes)}
        history.then(
            events.ThroughputMeasured(
                profile_key=key,
                num_gpus=1,
                iterations_per_s=curve[1],
                single_gpu=SingleGpuStepTimes(
                    num_virtual_nodes=num_virtual_nodes, step_s_by_virtual_nodes=step_s, reproducible=reproducible
                ),
                job_id="profiled",
                generation=1,
                source="profile",
                at_s=NOW_S + 1e-3,
            )
        )
    return history
