"""The scheduler's loops are compiled once for an installation, before the services that start together need them.

Each service would see to it by itself (they take turns), but under a limit of time: the compilation takes about
20 s of CPU, and several times that on a busy machine.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from elasticflow.children import last_line, start_process
from elasticflow.errors import StartFailed

_COMMAND = (sys.executable, "-m", "shared.scheduling.warm_up")
_SAY_AFTER_S = 3.0  # without a word where nearly all of the code is there


async def compile_scheduler(
    environment: Mapping[str, str],
    log_file: Path,
    report: Callable[[str], None],
    *,
    command: tuple[str, ...] = _COMMAND,
    say_after_s: float = _SAY_AFTER_S,
) -> None:
    """In a process of its own, which ends with the call. report: told if it takes long. Raises StartFailed."""
    process = await start_process(command, environment, log_file)
    notice = asyncio.get_running_loop().call_later(
        say_after_s, report, "compiling the scheduler, once for this installation: about 20 s"
    )
    try:
        status = await process.wait()
    finally:
        notice.cancel()
        if process.returncode is None:
            process.kill()  # half the code is no harm: the next process compiles the rest
            await process.wait()
    if status != 0:
        raise StartFailed("the compiled scheduler", last_line(log_file), str(log_file))
