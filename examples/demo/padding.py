"""The padding load of the demo: it estimates pi on the GPUs that no job uses."""

import asyncio
import contextlib
from concurrent.futures import Future

from elasticflow import PaddingExecutor
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.shared.runtime.process.local_hardware import num_cores
from examples.pi import points_in_circle

LOAD_ID = "pi"
NUM_TASKS = 150 * min(num_cores(), 10)  # of more cores, each CPU slot has a larger part, at most a whole one
_TASK_S = 0.03
_TIMEOUT_S = 300.0  # after the last job: all GPUs are idle then, and a busy machine is slow


class PaddingLoad:
    """The load is submitted when this is made."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._executor = PaddingExecutor(
            task_s=_TASK_S, load_id=LOAD_ID, nats_url=endpoint.nats_url, pool=endpoint.pool
        )
        self._counts: list[Future[int]] = [self._executor.submit(points_in_circle, seed) for seed in range(NUM_TASKS)]
        self._executor.shutdown(wait=False)

    def close(self) -> None:
        """Cancel what is left of it."""
        self._executor.cancel()

    async def results(self) -> list[int | BaseException]:
        """The result of each task, or why it has none. A load that does not end in time is cancelled."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await asyncio.to_thread(self._executor.shutdown)
        self.close()
        return await asyncio.gather(*map(asyncio.wrap_future, self._counts), return_exceptions=True)
