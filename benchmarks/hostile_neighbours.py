"""`python -m benchmarks.hostile_neighbours`: the step time of a job beside a job that attacks its node.

Two isolated workers take steps of which each part waits 50 ms, as for a GPU. Meanwhile a job attacks and
fails, again and again until the steps are over. Beside it in each round: the steps alone, and beside a job that starts
and fails as often and attacks nothing. Needs Linux namespaces.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.report import Measured, Row, report, where_and_when
from elasticflow.services.executor.processes.worker_isolation import WorkerIsolation
from elasticflow.shared.messages.worker_protocol.forking import Isolation
from elasticflow.shared.messages.worker_protocol.from_worker import Failed, Finished, Started
from elasticflow.shared.runtime.process.isolation.machine_check import python_folders
from testbed.hostile_attacks import MEMORY_LIMIT_BYTES, targets_of_attacks
from testbed.secured_pool import secured_pool
from testbed.worker_nodes import Node, job_spec

STEP_S = 0.05
ALONE, HARMLESS = "alone", "beside a job that only fails"
ATTACKS = {  # what each looks like in the report
    "fork_bomb": "fork bomb",
    "memory_bomb": "memory bomb",
    "fill_folders_in_memory": "files in memory",
    "make_empty_files": "empty files in memory",
    "open_files": "open files",
    "trace_process": "tracing a process",
    "end_process": "signals to a process of the executor",
    "read_environments": "reading of environments",
    "read_file": "reading of a token file",
    "list_folder": "looking for foreign checkpoints",
    "write_plan_without_key": "connections to NATS",
}
_GOAL = 1.05
_SECRET = "a-token-of-the-executor"


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each kind, in turn.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a run.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure what attacks cost the steps of a neighbour. Goal: 1.05 times the steps beside a harmless job."""
    before = os.getloadavg()[0]
    measured = asyncio.run(_measured(rounds, steps))
    result = {**where_and_when(before), "steps": steps, "hostile_neighbours": measured}
    report("A neighbour's steps beside attacks", result, {"hostile_neighbours": rows}, as_json=as_json, out=out)


async def _measured(rounds: int, steps: int) -> Measured:
    """Seconds of a step, by what ran beside it, in the order of the rounds."""
    step_s: Measured = {name: [] for name in (ALONE, HARMLESS, *ATTACKS)}
    async with _attacked_node() as (node, aims):
        for _ in range(rounds):
            for name, seconds in step_s.items():
                seconds.append(await _step_s(node, name, aims, steps))
    return step_s


@contextlib.asynccontextmanager
async def _attacked_node() -> AsyncIterator[tuple[Node, Mapping[str, str]]]:
    """The node, and the aim of each attack: its token file, its checkpoints, a process of its user, a NATS server."""
    with tempfile.TemporaryDirectory(prefix="ef-neighbours-") as data, tempfile.TemporaryDirectory() as of_server:
        isolation = Isolation(
            namespaces=True, readable=python_folders(), hidden=(data,), memory_bytes=MEMORY_LIMIT_BYTES
        )
        node = Node(Path(data), isolation=WorkerIsolation(isolation))
        (node.folder / "run.json").write_text(_SECRET)
        await node.launcher.start()
        of_executor = await asyncio.create_subprocess_exec("sleep", "infinity", env=os.environ | {"NATS_URL": _SECRET})
        try:
            async with secured_pool(Path(of_server)) as pool:
                address = pool.url.removeprefix("nats://")
                yield node, targets_of_attacks(node, "", pid=of_executor.pid, nats_address=address, secret=_SECRET)
            assert of_executor.returncode is None, "an attack has ended a process outside of its job"
        finally:
            of_executor.kill()
            await of_executor.wait()
            await node.launcher.close()


async def _step_s(node: Node, beside: str, aims: Mapping[str, str], steps: int) -> float:
    spec = job_spec("Points", max_iterations=steps, hyperparameters={"step_s": STEP_S})
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=2)
    await workers.first(Started)
    is_over = asyncio.Event()
    attacker = asyncio.create_task(_attack(node, beside, aims, is_over))
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    await workers.first(Finished)
    took_s = loop.time() - started_s
    is_over.set()
    await attacker
    await workers.ended()
    return took_s / steps


async def _attack(node: Node, name: str, aims: Mapping[str, str], is_over: asyncio.Event) -> None:
    """The last attack comes to its end."""
    attack, aim = (name, aims[name]) if name in ATTACKS else ("list_folder", "/")
    spec = job_spec("hostile_jobs:Hostile", hyperparameters={"attack": attack, "target": aim})
    while name != ALONE and not is_over.is_set():
        workers = await node.launch(spec, job_id=node.new_job_id(), memory_limit_bytes=MEMORY_LIMIT_BYTES)
        await workers.first(Failed)
        await workers.ended()


def rows(step_s: Measured) -> Iterator[Row]:
    harmless = step_s[HARMLESS]
    for name, seconds in step_s.items():
        ratios = [own / other for own, other in zip(seconds, harmless, strict=True)]
        is_attack = name in ATTACKS
        yield Row(
            f"a step, {ATTACKS.get(name, name)}",
            f"{median(ratios):.2f} x" if is_attack else f"{1_000 * median(seconds):.1f} ms",
            f"<= {_GOAL} x {HARMLESS}" if is_attack else "",
            f"{1_000 * min(seconds):.1f} to {1_000 * max(seconds):.1f} ms",
        )


if __name__ == "__main__":
    typer.run(main)
