"""Training as tasks of a padding load: an ordinary job on GPUs that no job needs, managed from this machine."""

import copy
import io
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from elasticflow.client.client import Client, with_client
from elasticflow.client.command_requests import Package
from elasticflow.client.pool_endpoint import find_endpoint
from elasticflow.client.training_load import TrainingOptions, TrainingProgress, train_in_tasks
from elasticflow.errors import InvalidJob
from elasticflow.sdk.job import ElasticJob
from elasticflow.sdk.submission import Submission, submission_of
from elasticflow.shared.extras import require_extra
from elasticflow.shared.messages.job_spec import SCRIPT, TORCHRUN
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan
from elasticflow.shared.runtime.process.clock import fresh_id
from elasticflow.shared.runtime.process.nats_access import reachable_host

_MAX_NAME = 40  # characters of a load's name that come from the class


def _ignore(_: TrainingProgress) -> None:
    pass


def train(
    job: ElasticJob,
    checkpoint_dir: str | Path,
    *,
    options: TrainingOptions | None = None,
    on_progress: Callable[[TrainingProgress], None] = _ignore,
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> TrainingProgress:
    """Train the job on idle GPUs of the pool, with this machine as its manager.

    The result has the bits of a run on its own GPUs with as many virtual nodes: those of its class, else up to 8.
    checkpoint_dir: the training continues from the newest checkpoint in it. Returns after the last iteration. Raises
    InvalidJob, PackagingFailed, LoadNotOpened, LoadWasCancelled, TaskError, TrainingRefused, ManagerEnded, Undecided.
    """
    return train_submission(
        submission_of(copy.copy(job).set_job_class("padding")),
        checkpoint_dir,
        options=options or TrainingOptions(),
        on_progress=on_progress,
        tenant=tenant,
        nats_url=nats_url,
        pool=pool,
        data_dir=data_dir,
    )


def train_submission(
    ready: Submission,
    checkpoint_dir: str | Path,
    *,
    options: TrainingOptions,
    on_progress: Callable[[TrainingProgress], None],
    tenant: str,
    nats_url: str,
    pool: str,
    data_dir: Path | None,
) -> TrainingProgress:
    """Do what `train` does, for a job with its code."""
    require_extra("train", "a training manager")
    if ready.spec.entry in (SCRIPT, TORCHRUN):
        raise InvalidJob("a script cannot train as tasks of a padding load: write it as a subclass of ElasticJob")
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    name = f"{ready.spec.entry[:_MAX_NAME].replace('_', '-')}-{fresh_id()[:6]}"
    with tempfile.TemporaryDirectory(prefix="eflow-") as code_folder:
        assignment = Assignment(
            job_id=name,
            plan=GenerationPlan(generation=1, world_size=1, micro_batch_size=options.micro_batch_size),
            rank=0,
            spec=ready.spec,
            checkpoint_dir=str(Path(checkpoint_dir).absolute()),
            code_path=_extracted(ready.code, code_folder),
            device=options.device,
            advertise_host=options.advertise_host or reachable_host(endpoint.nats_url),
            checkpoint_every_s=options.checkpoint_every_s,
        )

        async def trained(client: Client) -> TrainingProgress:
            return await train_in_tasks(client, assignment, ready.code, options=options, on_progress=on_progress)

        return with_client(endpoint, tenant, trained)


def _extracted(code: Package | None, folder: str) -> str:
    """The folder with the job's code as the nodes have it; "" if it is importable without."""
    if code is None:
        return ""
    with zipfile.ZipFile(io.BytesIO(code.archive)) as archive:
        archive.extractall(folder)
    return folder
