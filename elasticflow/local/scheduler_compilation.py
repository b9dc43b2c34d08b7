"""Compiles the scheduler's loops once for an installation, before the services start together.

Each service compiles them if they are missing (one at a time), but within its start timeout. The compilation takes
about 20 s of CPU, and several times that on a busy machine.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from elasticflow.errors import StartFailed
from elasticflow.local.child_process import last_line, start_process
from elasticflow.shared.runtime.process.run_module import module_command

_COMMAND = module_command("elasticflow.shared.scheduling.compiled.warm_up")
_REPORT_AFTER_S = 3.0  # no report if nearly all of the code is compiled


async def compile_scheduler(
    environment: Mapping[str, str],
    log_file: Path,
    report: Callable[[str], None],
    *,
    command: tuple[str, ...] = _COMMAND,
    report_after_s: float = _REPORT_AFTER_S,
) -> None:
    """Compile in a child process that ends with this call. report: called if it takes long. Raises StartFailed."""
    process = await start_process(command, environment, log_file)
    notice = asyncio.get_running_loop().call_later(
        report_after_s, report, "compiling the scheduler, once for this installation: about 20 s"
    )
    try:
        status = await process.wait()
    finally:
        notice.cancel()
        if process.returncode is None:
            process.kill()  # the next process compiles the rest
            await process.wait()
    if status != 0:
        raise StartFailed("the compiled scheduler", last_line(log_file), str(log_file))
