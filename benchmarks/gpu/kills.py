"""Are the weights those of one worker after a worker has died in any transfer of a step? A run for each transfer."""

import asyncio
import tempfile
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.engine.parts import Device
from benchmarks.engine.stage import Stage, stage
from benchmarks.gpu.hashes import NEVER_S, digest_of, spec_of, train_to_the_end
from benchmarks.gpu.jobs import GLOBAL_BATCH_SIZE, Sensitive
from benchmarks.report import Measured, Row

_NUM_ITERATIONS = 6


def measure(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    asyncio.run(_measure(device, 2 if quick else 4, note))


async def _measure(device: Device, num_workers: int, note: Callable[..., None]) -> None:
    """Notes the number of transfers, and after which of them the weights differ."""
    differences: list[int] = []
    async with stage(device) as there:
        undisturbed = await _trained(there, "undisturbed", 1)
        for kill_at in count():
            with tempfile.TemporaryDirectory() as marks:
                trained = await _trained(there, f"kill-{kill_at}", num_workers, kill_at=kill_at, marks=marks)
                if not _has_mark(Path(marks)):
                    break
            if trained != undisturbed:
                differences.append(kill_at)
            note(num_workers=num_workers, num_transfers=kill_at + 1, differences=differences)


def _has_mark(folder: Path) -> bool:
    return any(folder.iterdir())


async def _trained(there: Stage, job_id: str, num_workers: int, **hyperparameters: Any) -> str:
    spec = spec_of(Sensitive(), _NUM_ITERATIONS, GLOBAL_BATCH_SIZE, **hyperparameters)
    crew = there.crew(job_id, spec, checkpoint_every_s=NEVER_S)
    await train_to_the_end(crew, num_workers)
    return digest_of(crew)


def rows(measured: Measured) -> Iterable[Row]:
    what = f"SIGKILL in each of {measured['num_transfers']} transfers of a step, other weights afterwards"
    yield Row(what, str(len(measured["differences"])), "0")
