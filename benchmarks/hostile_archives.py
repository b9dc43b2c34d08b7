"""`python -m benchmarks.hostile_archives`: the step time of a job while its node receives code that cannot be unpacked.

A real pool with one node of two slots. One slot trains; on the other one jobs fail one after the other: jobs whose
module is missing, then jobs of each hostile archive of the tests. All processes of the node must stay the same.
"""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.report import Measured, Row, report, where_and_when
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.process.logs import configure_logs
from elasticflow.shared.state.job import Job
from testbed.hostile_archives import HOSTILE_ARCHIVES
from testbed.real_pool import POOL, RunningPool, job, running_pool

STEP_S = 0.2
ALONE, HARMLESS, HOSTILE = "alone", "beside jobs without their module", "beside jobs of hostile archives"
_GOAL = 1.05


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each kind, in turn.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a run.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure what hostile archives cost a neighbour. Goal: 1.05 times its steps beside other failing jobs."""
    os.environ.pop("NATS_URL", None)  # it has a pool of its own
    configure_logs(level="error")
    before = os.getloadavg()[0]
    measured = asyncio.run(_measured(rounds, steps))
    result = {**where_and_when(before), "steps": steps, "hostile_archives": measured}
    report("A neighbour's steps beside hostile archives", result, {"hostile_archives": rows}, as_json=as_json, out=out)


async def _measured(rounds: int, steps: int) -> Measured:
    """step_s: seconds of a step, by what ran beside it; failed: jobs that failed beside all steps of the kind."""
    step_s: dict[str, list[float]] = {name: [] for name in (ALONE, HARMLESS, HOSTILE)}
    failed = dict.fromkeys(step_s, 0)
    with tempfile.TemporaryDirectory(prefix="ef-archives-") as folder:
        async with running_pool(Path(folder), num_nodes=1, replicas={}) as pool:
            await pool.when(lambda state: state.num_gpus == 2, "the node has joined")
            codes = [await _stored(pool, data) for data in HOSTILE_ARCHIVES.values()]
            specs = {HARMLESS: [_failing()], HOSTILE: [_failing(code) for code in codes]}
            before = pool.pids()
            for number in range(rounds):
                for name, seconds in step_s.items():
                    async with _failing_beside(pool, specs.get(name, []), f"{number}-{len(name)}") as ended:
                        seconds.append(await _step_s(pool, f"trains-{number}-{len(name)}", steps))
                    failed[name] += len(ended)
            same = pool.pids() == before
    return {"step_s": step_s, "failed": failed, "archives": len(HOSTILE_ARCHIVES), "same_processes": same}


async def _stored(pool: RunningPool, archive: bytes) -> str:
    digest = hashlib.sha256(archive).hexdigest()
    name = streams.code_name(pool.client.tenant, digest)
    await pool.bus.put_object(streams.code_bucket(POOL), name, archive)
    return digest


def _failing(code_digest: str = "") -> JobSpec:
    return job(JobClass.BEST_EFFORT, training_function="no_such_module:Job", code_digest=code_digest, max_gpus=1)


@asynccontextmanager
async def _failing_beside(pool: RunningPool, specs: list[JobSpec], name: str) -> AsyncIterator[list[Job]]:
    """Jobs of these specs in turn, each submitted once the one before has failed. Gives those that have ended."""
    ended: list[Job] = []

    async def fail() -> None:
        for number, spec in enumerate(cycle(specs)):
            await pool.client.submit(spec, job_id=f"fails-{name}-{number}")
            ended.append(await pool.client.wait(f"fails-{name}-{number}"))

    failing = asyncio.create_task(fail())
    try:
        yield ended
    finally:
        failing.cancel()
        await asyncio.gather(failing, return_exceptions=True)


async def _step_s(pool: RunningPool, job_id: str, steps: int) -> float:
    """The time of a step, from the start of the training to its end."""
    spec = job(JobClass.BEST_EFFORT, hyperparameters={"step_s": STEP_S}, max_iterations=steps, max_gpus=1)
    await pool.client.submit(spec, job_id=job_id)
    started = await pool.when(lambda state: _started_s(state.job(job_id)) is not None, f"{job_id} trains")
    ended = await pool.ended([job_id])
    started_s, ended_s = _started_s(started.job(job_id)), ended.ended_jobs[job_id].ended_at_s
    assert started_s is not None
    assert ended_s is not None
    return (ended_s - started_s) / steps


def _started_s(job: Job | None) -> float | None:
    return None if job is None else job.started_at_s


def rows(measured: Measured) -> Iterator[Row]:
    harmless = measured["step_s"][HARMLESS]
    for name, seconds in measured["step_s"].items():
        ratio = median(own / other for own, other in zip(seconds, harmless, strict=True))
        yield Row(
            f"a step, {name}",
            f"{ratio:.2f} x" if name == HOSTILE else f"{1_000 * median(seconds):.1f} ms",
            f"<= {_GOAL} x {HARMLESS}" if name == HOSTILE else "",
            f"{1_000 * min(seconds):.1f} to {1_000 * max(seconds):.1f} ms; {measured['failed'][name]} jobs failed",
        )
    yield Row("processes of the pool", "the same" if measured["same_processes"] else "OTHERS", "the same")


if __name__ == "__main__":
    typer.run(main)
