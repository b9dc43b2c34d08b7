"""Clients that submit, amend, cancel and quote, and write down what they were told."""

import asyncio
import time
from collections.abc import Awaitable

import numpy as np

from benchmarks.nemesis.linearizability import FIRST_ITERATIONS, Amend, Call, Cancel, Operation, Quote, Read, Submit
from benchmarks.nemesis.machines import POOL
from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages.events import JobAdmitted, JobAmended, JobCancelled
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.pool import spec_of

RATE = 40.0  # iterations/s on the only GPU
DEADLINE_IN_S = 36_000.0
CONFIG = PoolConfig(
    admission="first-come",  # the price of a job is another matter
    curves={"steps/b8": {1: RATE}},
    throughput_margin=0.5,
    resize_cost_s=1.0,
    heartbeat_timeout_s=600.0,  # a lost node would leave no space
    stall_timeout_s=3_600.0,
)
SPEC = JobSpec(
    training_function="testbed.user_code.tiny_jobs:Steps",
    model_name="steps",
    global_batch_size=8,
    max_iterations=FIRST_ITERATIONS,  # 0.6 of what the GPU does until the deadline, at half its speed
    deadline_in_s=DEADLINE_IN_S,
)
_MOST_AMENDED = 500_000  # less than the GPU can do, and more than half of it
_LEAST_AMENDED = 400_000
_REPLY_TIMEOUT_S = 60.0
_QUOTE_TIMEOUT_S = 5.0
_PAUSE_S = 0.3
_WEIGHTS = (0.3, 0.2, 0.2, 0.3)


class History:
    """The history of all clients of one pool."""

    def __init__(self, url: str) -> None:
        self.operations: list[Operation[Call]] = []
        self._endpoint = Endpoint(nats_url=url, pool=POOL)
        self._job_ids = ["none"]
        self._admitted = "none"  # the last one that was reported to a client

    async def client(self, number: int, rng: np.random.Generator, until_s: float) -> None:
        """One call after another, until this instant of the monotonic clock."""
        async with Client.connect(self._endpoint, tenant="lab") as client:
            while time.monotonic() < until_s:
                call = self._chosen(number, rng)
                await self._record(call, self._reply(client, call))
                await asyncio.sleep(float(rng.exponential(_PAUSE_S)))

    async def read_at_last(self) -> None:
        """What the ledger holds once all calls have returned."""
        async with Client.connect(self._endpoint, tenant="lab") as client:
            await self._record(Read(), _live_job(client))

    def _chosen(self, number: int, rng: np.random.Generator) -> Call:
        recent = self._job_ids[-1 - min(int(rng.geometric(0.6)) - 1, len(self._job_ids) - 1)]
        job_id = self._admitted if rng.random() < 0.6 else recent
        match rng.choice(4, p=_WEIGHTS):
            case 0:
                self._job_ids.append(f"job-{number}-{len(self._job_ids)}")
                return Submit(self._job_ids[-1])
            case 1:
                return Amend(job_id, int(rng.integers(_LEAST_AMENDED, _MOST_AMENDED)))
            case 2:
                return Cancel(job_id)
            case _:
                return Quote()

    async def _record(self, call: Call, reply: Awaitable[object]) -> None:
        invoked_s = time.monotonic()
        try:
            told = await reply
        except Retry:
            if not isinstance(call, Quote):  # one without an answer changes nothing
                self.operations.append(Operation(call=call, reply=None, invoked_s=invoked_s))
            return
        self.operations.append(Operation(call=call, reply=told, invoked_s=invoked_s, returned_s=time.monotonic()))

    async def _reply(self, client: Client, call: Call) -> object:
        match call:
            case Submit(job_id=job_id):
                decision = await client.submit(SPEC, job_id=job_id, timeout=_REPLY_TIMEOUT_S)
                if isinstance(decision, JobAdmitted):
                    self._admitted = job_id
                return isinstance(decision, JobAdmitted)
            case Amend(job_id=job_id, iterations=iterations):
                reply = await client.amend(job_id, max_iterations=iterations, timeout=_REPLY_TIMEOUT_S)
                return isinstance(reply, JobAmended)
            case Cancel(job_id=job_id):
                return isinstance(await client.cancel(job_id, timeout=_REPLY_TIMEOUT_S), JobCancelled)
            case Quote():
                quoted = await client.quote(SPEC, timeout=_QUOTE_TIMEOUT_S)
                earliest_s = quoted.earliest_deadline_s
                return earliest_s is not None and earliest_s - quoted.at_s < DEADLINE_IN_S
            case Read():
                return await _live_job(client)


async def _live_job(client: Client) -> tuple[str, int]:
    state = await client.state()
    live = list(state.live_jobs.values())
    assert len(live) <= 1, f"the pool has space for one job, and holds {[job.job_id for job in live]}"
    return (live[0].job_id, spec_of(live[0]).max_iterations) if live else ("", 0)
