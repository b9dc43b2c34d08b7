"""A worker that joins a compiled model: seconds of the resize, and whether the weights are those of one worker."""

import asyncio
from collections.abc import Callable, Iterable

from benchmarks.engine.parts import Device
from benchmarks.engine.stage import stage
from benchmarks.gpu.hashes import NEVER_S, digest_of, spec_of, train_to_the_end
from benchmarks.gpu.jobs import GLOBAL_BATCH_SIZE, Compiled
from benchmarks.report import Measured, Row


def measure(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    asyncio.run(_measure(device, 120 if quick else 800, note))


async def _measure(device: Device, num_iterations: int, note: Callable[..., None]) -> None:
    async with stage(device) as there:
        spec = spec_of(Compiled(), num_iterations, GLOBAL_BATCH_SIZE)
        alone = there.crew("alone", spec, checkpoint_every_s=NEVER_S)
        await train_to_the_end(alone, 1)
        crew = there.crew("joined", spec, checkpoint_every_s=NEVER_S)
        await crew.start(1)
        await crew.until(lambda: crew.holders[0].iteration > 0 or crew.finished is not None, "it has trained")
        joined = bool(crew.holders) and await crew.switch([crew.holders[0], None])
        await crew.until(lambda: not crew.processes, "it has finished")
        timeline = crew.timelines[-1] if joined else None
        note(
            joined=joined,
            equal=digest_of(crew) == digest_of(alone),
            prepare_s=timeline.prepare_s if timeline else None,
            stop_s=timeline.stop_s if timeline else None,
            first_step_s=timeline.first_step_s if timeline else None,
        )


def rows(measured: Measured) -> Iterable[Row]:
    parts = ("prepare_s", "stop_s", "first_step_s") if measured["joined"] else ()
    seconds = " + ".join(f"{measured[name]:.2f}" for name in parts) or "-"
    yield Row("a worker joins a compiled model: prepared + stopped + first step, s", seconds)
    yield Row("weights afterwards", "equal" if measured["equal"] else "DIFFERENT", "equal")
