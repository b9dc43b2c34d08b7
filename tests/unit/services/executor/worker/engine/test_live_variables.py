"""Which variables of a paused function it may still read."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from elasticflow.services.executor.worker.engine.kept_tensors import may_be_read


def loop(batches: list[int]) -> Iterator[None]:
    best: Any = None
    kept = [0]
    outputs = losses = seen = None
    for batch in batches:
        yield  # paused here
        losses = []
        for each in batches:
            with nullcontext():
                outputs = each + batch
            losses.append(outputs)
        seen = losses
        if best is None or sum(losses) > 3:
            best = losses
        kept.append(batch)
    print(best, seen, [each + 1 for each in kept])


def test_a_variable_that_is_written_first_is_not_read() -> None:
    running = loop([1, 2])
    next(running)
    next(running)
    frame: Any = getattr(running, "gi_frame")  # noqa: B009
    names = ("batches", "batch", "best", "kept", "seen", "outputs", "losses", "each")
    assert {name for name in names if may_be_read(frame, name)} == {"batches", "batch", "best", "kept"}


MODULE = """
for batch in range(2):
    frames.append(sys._getframe())
    outputs = batch
    best = max(batch, best)
"""


def test_a_script_without_functions_is_read_alike() -> None:
    import sys

    frames: list[Any] = []
    variables = {"sys": sys, "frames": frames, "best": 0, "outputs": 0}
    code = compile(MODULE, "script", "exec")
    found: dict[str, bool] = {}

    class Look(list[Any]):
        def append(self, frame: Any) -> None:
            found.update({name: may_be_read(frame, name) for name in ("outputs", "best")})

    variables["frames"] = Look()
    exec(code, variables)
    assert found == {"outputs": False, "best": True}
