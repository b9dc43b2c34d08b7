"""The joblib backend: each batch of calls is a task, and the batches of a `Parallel` call are a padding load."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

from joblib.parallel import AutoBatchingMixin, ParallelBackendBase  # pyright: ignore[reportMissingTypeStubs]

from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import find_endpoint
from elasticflow.sdk.padding import call_each
from elasticflow.sdk.padding_executor import PaddingExecutor

_ENDPOINT_OPTIONS = ("nats_url", "pool", "data_dir")


class ElasticFlowBackend(AutoBatchingMixin, ParallelBackendBase):  # pyright: ignore[reportIncompatibleMethodOverride]
    """options: of `PaddingExecutor`. A task is a batch of calls, to which joblib gives 0.2 to 2 s."""

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(self, nesting_level: int | None = None, inner_max_num_threads: int | None = None, **options: Any):
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads
        )
        self._options = options
        self._executor: PaddingExecutor | None = None

    def effective_n_jobs(  # pyright: ignore[reportIncompatibleMethodOverride] - joblib has no annotations
        self, n_jobs: int | None
    ) -> int:
        """-1 means all GPUs of the pool; at least 2, since joblib makes the calls itself if it is 1."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or n_jobs < 0:
            return max(self._num_gpus + 1 + (n_jobs or -1), 2)
        return n_jobs

    def submit(self, func: Any, callback: Callable[[Future[Any]], object] | None = None) -> Future[Any]:
        """func: joblib's batch of calls."""
        if self._executor is None:
            self._executor = PaddingExecutor(**self._options)
        try:
            future = self._executor.submit(call_each, func.items)
        except Exception as error:  # joblib expects it from the future: it also submits in a callback
            future = Future[Any]()
            future.set_exception(error)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Raises the exception of the batch."""
        return out.result()

    def terminate(self) -> None:
        """The results are read: end the load."""
        self.reset_batch_stats()
        if (executor := self._forget_executor()) is not None:
            executor.shutdown(wait=False)

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the load. The next call opens another one."""
        if (executor := self._forget_executor()) is not None:
            executor.cancel()

    def _forget_executor(self) -> PaddingExecutor | None:
        executor, self._executor = self._executor, None
        return executor

    @cached_property
    def _num_gpus(self) -> int:
        endpoint = find_endpoint(**{name: self._options[name] for name in _ENDPOINT_OPTIONS if name in self._options})

        async def num_gpus() -> int:
            async with Client.connect(endpoint) as client:
                return (await client.state()).num_gpus

        with ThreadPoolExecutor(1) as thread:  # this one may run an event loop, as in a notebook
            return thread.submit(asyncio.run, num_gpus()).result()
