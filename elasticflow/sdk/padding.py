"""Padding loads for scripts and notebooks: one function called on many inputs, on GPUs that no job uses."""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from elasticflow.client.pool_endpoint import Endpoint, find_endpoint
from elasticflow.sdk.packaging import Package
from elasticflow.sdk.padding_code import load_name, named_code
from elasticflow.sdk.padding_results import LoadResults, in_order
from elasticflow.shared.messages.load_spec import LoadSpec

Input = TypeVar("Input")
Output = TypeVar("Output")


def map(
    function: Callable[[Input], Output],
    inputs: Iterable[Input],
    *,
    task_s: float = 1.0,
    overhead_s: float = 0.0,
    memory_bytes: int = 0,
    gpu_type: str = "",
    task_timeout_s: float = 3_600.0,
    max_attempts: int = 3,
    load_id: str = "",
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> Generator[Output]:
    """Call the function on each input, on idle GPUs of the pool; yields the results in the order of the inputs.

    function: from the top of a module; its code is sent, except for functions of installed packages. A call may be
    executed twice, so it must be idempotent.
    task_s, overhead_s: seconds of one call, about. memory_bytes, gpu_type: of the GPU or CPU slot; any by default.
    Raises PackagingFailed, LoadNotOpened, and TaskError for a call that failed max_attempts times; the remaining calls
    are cancelled then.
    """
    task_function, code = named_code(function)
    spec = LoadSpec(
        task_function=task_function,
        code_digest=code.code_digest if code is not None else "",
        task_s=task_s,
        overhead_s=overhead_s,
        memory_bytes=memory_bytes,
        gpu_type=gpu_type,
        task_timeout_s=task_timeout_s,
        max_attempts=max_attempts,
    )
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return _in_order(endpoint, tenant, spec, code, load_id or load_name(function.__name__), inputs)


def _in_order(
    endpoint: Endpoint, tenant: str, spec: LoadSpec, code: Package | None, load_id: str, inputs: Iterable[Any]
) -> Generator[Any]:
    with closing(LoadResults(endpoint, tenant, spec, code, load_id, inputs)) as results:
        for result in in_order(results):
            yield results.value_of(result)
