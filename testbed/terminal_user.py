"""A user of a running pool: `eflow` commands, processes, plain NATS messages, and their results."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import nats
from typer.testing import CliRunner

from elasticflow.cli.app import app
from elasticflow.history.pool_views import node_views
from elasticflow.shared.state.job import Job, Phase
from testbed.real_pool import POOL, RunningPool, eventually

ROOT = Path(__file__).parents[1]
WAIT_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """The one JSON value on its stdout."""
        return json.loads(self.out)


class User:
    """A user of the pool, with a folder of files."""

    def __init__(self, pool: RunningPool, folder: Path) -> None:
        self.pool, self.folder = pool, folder

    async def eflow(self, *arguments: str, **environment: str) -> Ran:
        """Run the command in a thread of this process: starting a process takes as long as the rest of a test."""
        unset = dict.fromkeys(("NATS_URL", "EF_POOL", "EF_TENANT"))
        here = {**unset, "EF_DATA_DIR": str(self.pool.data_dir), **environment}
        async with asyncio.timeout(WAIT_S):
            ran = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=here, prog_name="eflow")
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        return Ran(status=ran.exit_code, out=ran.stdout, err=ran.stderr)

    async def python(self, *arguments: str, **environment: str) -> Ran:
        """Run Python in another process."""
        here = {"PYTHONPATH": str(ROOT), "EF_DATA_DIR": str(self.pool.data_dir)}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *arguments,
            env=os.environ | here | environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(WAIT_S):
            out, err = await process.communicate()
        assert process.returncode is not None
        assert b"Traceback" not in err, err.decode()
        return Ran(status=process.returncode, out=out.decode(), err=err.decode())

    async def publishes(self, message_type: str, job_id: str, **payload: Any) -> tuple[str, dict[str, Any]]:
        """Publish a message as in `docs/how-to/publish-messages.md`. Returns type and fields of the last reply."""
        message = {"type": message_type, "payload": {"job_id": job_id, "tenant": "default", **payload}}
        client = await nats.connect(self.pool.url)
        try:
            answers = await client.subscribe(f"ef.answer.default.{POOL}.{job_id}")
            await client.jetstream().publish(f"ef.submit.default.{POOL}", json.dumps(message).encode())
            while True:
                received = await answers.next_msg(timeout=WAIT_S)
                answer = msgpack.unpackb(received.data, strict_map_key=False)
                if answer["type"] != "ProfileRequested":
                    return answer["type"], answer["payload"]
        finally:
            await client.close()

    async def job_has_ended(self, job_id: str, phase: Phase) -> Job:
        """Wait until the job has ended in this phase, and all GPUs are free."""
        state = await self.pool.ended([job_id])
        assert state.ended_jobs[job_id].phase is phase, state.ended_jobs[job_id]
        assert all(node.num_free_gpus == node.num_gpus for node in node_views(state) if node.alive)
        await eventually(lambda: not self.pool.workers(), "no worker is left")
        return state.ended_jobs[job_id]
