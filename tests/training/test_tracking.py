"""A job has one run in a real MLflow server, through resizes, killed leaders and an outage of the server."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticflow.adapters.mlflow import MLflowRuns
from elasticflow.shared.messages.worker_protocol.from_worker import Finished, Progressed
from tests.support.trained_jobs import end_of, switch
from tests.training import conftest
from tests.training.test_features import LAST, job, train_with_lost_leaders
from tests.training.test_libraries import PACKAGES, library_script

mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
SERVER = Path(sys.prefix) / "tracking-server" / "bin" / "mlflow"  # `make nightly` installs it, with what it needs

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.nightly("a server of its own, with 60 packages; tests/unit/elasticflow/adapters keeps the promise"),
    pytest.mark.skipif(not SERVER.exists(), reason=f"no MLflow server in {SERVER.parent}"),
    pytest.mark.skipif(conftest.IS_ASYNCHRONOUS, reason="the transport of tensors has no part in it"),
]
EXPERIMENT = "digits"
LAST_STEADY = 1500  # iterations


@pytest.fixture
def port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as reserved:
        return reserved.getsockname()[1]


@asynccontextmanager
async def server(folder: Path, port: int) -> AsyncIterator[str]:
    """Its address, once it answers."""
    with (folder / "server.log").open("a") as output:
        process = await asyncio.create_subprocess_exec(
            *(str(SERVER), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{folder}/runs.sqlite"),
            *("--artifacts-destination", str(folder / "files")),
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder)},  # it leaves a lock there
        )
    try:
        async with asyncio.timeout(300):
            while True:
                assert process.returncode is None, (folder / "server.log").read_text()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.2)
                else:
                    writer.close()
                    break
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
        await process.wait()


def runs(uri: str) -> list[Any]:
    client = mlflow.MlflowClient(uri)
    found = client.get_experiment_by_name(EXPERIMENT)
    return [] if found is None else list(client.search_runs([found.experiment_id]))


def history(uri: str, metric: str) -> list[tuple[int, float]]:
    """(iteration, value) of the only run, in the order of iterations; those of a repeated iteration, too."""
    found = [run for run in runs(uri) if "elasticflow.identity" in run.data.tags]
    assert len(found) <= 1
    if not found:
        return []
    points = mlflow.MlflowClient(uri).get_metric_history(found[0].info.run_id, metric)
    return sorted((point.step, point.value) for point in points)


def tracked(spec_of: Any, uri: str, slow_down: Path, **more: Any) -> Any:
    return job(spec_of, "InMLflow", uri=uri, experiment=EXPERIMENT, slow_down=str(slow_down), **more)


async def test_a_job_of_five_resizes_has_one_run(node, spec_of, tmp_path, port, slow_down) -> None:
    async with server(tmp_path, port) as uri:
        settings = {"uri": uri, "experiment": EXPERIMENT, "steady": str(slow_down)}
        spec = replace(job(spec_of, "InMLflow", **settings), max_iterations=LAST_STEADY)
        launched = {"job_id": node.new_job_id(), "job_identity": "5" * 16, "deadline_s": 2_000_000_000.0}
        workers = await node.launch(spec, num_workers=2, **launched)
        await workers.first(Progressed)
        workers = await switch(node, workers, [0, 1, None], [2], [None, 0], [1], [0, None])
        slow_down.unlink()
        await end_of(node, workers)
        (run,) = runs(uri)
        losses, num_gpus = history(uri, "loss"), history(uri, "num_gpus")
        assert [iteration for iteration, _ in losses] == list(range(1, LAST_STEADY + 1))
        assert {value for _, value in num_gpus} == {1.0, 2.0, 3.0}
        assert (run.info.status, run.info.run_name) == ("FINISHED", launched["job_id"])
        assert run.data.params["global_batch_size"] == "21"
        assert run.data.tags["elasticflow.deadline"] == "2033-05-18T03:33:20+00:00"
        known = {"promise": "broken", "margin": "-3 s"}
        assert MLflowRuns(uri).write("5" * 16, known, "cancelled")
        (run,) = runs(uri)
        assert (run.info.status, run.data.tags["elasticflow.promise"]) == ("KILLED", "broken")
        assert not MLflowRuns(uri).write("6" * 16, known, "")


async def test_killed_leaders_leave_one_run_with_each_iteration_once(node, spec_of, tmp_path, port, slow_down) -> None:
    async with server(tmp_path, port) as uri:
        spec = tracked(spec_of, uri, slow_down)
        await train_with_lost_leaders(
            node, spec, slow_down, lambda: [iteration for iteration, _ in history(uri, "loss")], job_identity="7" * 16
        )
        iterations = [iteration for iteration, _ in history(uri, "loss")]
        assert len(runs(uri)) == 1
        assert len(set(iterations)) == len(iterations)
        assert LAST - len(iterations) <= 2, "a leader may be killed within the call of the sink"


async def test_a_server_that_is_away_holds_no_iteration_and_gets_all_of_them_later(
    node, spec_of, tmp_path, port, slow_down
) -> None:
    """The leader changes while the server is away."""
    spec = tracked(spec_of, f"http://127.0.0.1:{port}", slow_down)
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=2, job_identity="8" * 16)
    await workers.first(Progressed)
    workers = await switch(node, workers, [None, 1], [1])
    async with server(tmp_path, port) as uri:
        while not history(uri, "loss"):
            await workers.next_event()
        slow_down.unlink()
        await end_of(node, workers)
        assert [iteration for iteration, _ in history(uri, "loss")] == list(range(1, LAST + 1))
        assert [run.info.status for run in runs(uri)] == ["FINISHED"]


@pytest.mark.parametrize(
    ("library", "settings", "noted"),
    [
        ("transformers", {"report_to": ["mlflow"], "logging_steps": 5}, {"learning_rate": 6, "train_runtime": 1}),
        ("lightning", {"mlflow": True}, {"validated": 13}),
    ],
)
async def test_what_a_library_reports_is_in_the_run_of_the_job(
    library_node, spec_of, tmp_path, port, library, settings, noted
) -> None:
    pytest.importorskip(PACKAGES[library])
    async with server(tmp_path, port) as uri:
        given = {name: uri if name == "mlflow" else value for name, value in settings.items()}
        spec = library_script(spec_of, library, "0", json.dumps(given), until=31)
        spec = replace(spec, environment={"MLFLOW_TRACKING_URI": uri, "MLFLOW_EXPERIMENT_NAME": EXPERIMENT})
        launched = {"job_id": library_node.new_job_id(), "job_identity": "a" * 16, "num_workers": 2}
        await end_of(library_node, await library_node.launch(spec, **launched))
        assert [run.info.status for run in runs(uri)] == ["FINISHED"]
        assert [iteration for iteration, _ in history(uri, "loss")] == list(range(1, 32))
        assert {name: len(history(uri, name)) for name in noted} == noted


async def test_a_job_ends_although_no_server_ever_answers(node, spec_of, port, slow_down) -> None:
    slow_down.unlink()
    spec = tracked(spec_of, f"http://127.0.0.1:{port}", slow_down)
    workers = await node.launch(spec, job_id=node.new_job_id(), job_identity="9" * 16)
    assert (await workers.first(Finished)).iteration == LAST
    await workers.ended()
