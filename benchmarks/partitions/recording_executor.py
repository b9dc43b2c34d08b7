"""The real executor, with workers that train nothing and record until when they were allowed to train.

Arguments: NATS URL, pool, node id, data folder, file of the records (a JSON object a line, times of the boot clock).
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from elasticflow.services.executor.processes.fork_server_client import Exited
from elasticflow.services.executor.service import serve
from elasticflow.services.executor.settings import ExecutorSettings
from elasticflow.shared.messages.worker_protocol.from_worker import Started
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, LeaseExtended, StopAtBoundary
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.process.clock import SystemClock, boot_s
from elasticflow.shared.runtime.process.logs import configure_logs, get_log
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.process.settings import Settings
from elasticflow.shared.runtime.service.run_service import Process


class RecordingWorker:
    """Trains alone at once, until it is killed."""

    def __init__(self, assignment: Assignment, launcher: "RecordingLauncher") -> None:
        self.assignment, self.pid, self._launcher = assignment, 1, launcher
        launcher.report_soon(self, Started(iteration=0))

    def send(self, message: Any) -> None:
        if isinstance(message, LeaseExtended):
            self._launcher.record(self, "lease", message.until_s)
        elif isinstance(message, StopAtBoundary):
            self._launcher.report_soon(self, Exited(code=0, signal=None))

    def kill(self) -> None:
        self._launcher.record(self, "killed", boot_s())
        self._launcher.report_soon(self, Exited(code=None, signal=9))


class RecordingLauncher:
    def __init__(self, records: TextIO, on_event: Callable[[Any, Any], None]) -> None:
        self._records, self._on_event = records, on_event

    async def start(self) -> None:
        pass

    async def launch(self, assignment: Assignment) -> RecordingWorker:
        return RecordingWorker(assignment, self)

    async def close(self) -> None:
        pass

    def record(self, worker: RecordingWorker, what: str, at_s: float) -> None:
        line = {"generation": worker.assignment.plan.generation, "what": what, "at_s": at_s}
        print(json.dumps(line), file=self._records, flush=True)

    def report_soon(self, worker: RecordingWorker, message: Any) -> None:
        asyncio.get_running_loop().call_soon(self._on_event, worker, message)


async def main(url: str, pool: str, node_id: str, data_dir: str, records_file: str) -> None:
    configure_logs("json")
    environment = {"NATS_URL": url, "EF_POOL": pool, "EF_DATA_DIR": data_dir, "EF_NODE_ID": node_id}
    environment |= {"EF_DEVICE": "cpu", "EF_SLOTS": "1", "EF_METRICS_PORT": "0"}
    settings = Settings.from_environment(environment)
    bus = await connect_nats(url, name=node_id, wait_s=30.0)
    process = Process(
        settings=settings,
        bus=bus,
        clock=SystemClock(),
        log=get_log("executor"),
        metrics=Metrics("executor", pool),
    )
    executor_settings = ExecutorSettings.from_environment(url, environment)
    with Path(records_file).open("a") as records:  # noqa: ASYNC230 - before anything else runs
        await serve(
            process,
            settings=executor_settings,
            make_launcher=lambda on_event: RecordingLauncher(records, on_event),  # pyright: ignore[reportArgumentType]
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
