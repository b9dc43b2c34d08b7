"""The model and the files of a job, on the machine of its user."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from elasticflow.client.artifacts import STORED_TIMEOUT_S, StoredArtifacts
from elasticflow.client.client import Client, with_client
from elasticflow.client.pool_endpoint import find_endpoint
from elasticflow.errors import NoModel, NotConvertible, OutsideOfFolder
from elasticflow.shared.extras import require_extra
from elasticflow.shared.messages.events import UnstoredFile
from elasticflow.shared.messages.worker_protocol.from_worker import ARTIFACT_FOLDER, WORKING_FOLDER
from elasticflow.times import Duration

ModelFormat = Literal["torch", "safetensors"]
_MODEL_NAMES = {"torch": "model.pt", "safetensors": "model.safetensors"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """model: None if none is stored. iteration: of the model. files: those of the job's artifact folder are in
    `artifacts`, those that it wrote into its working folder in `files`. unstored: files that stay on their node, of
    num_unstored in all. node_id: whose data folder they come from. left_on: nodes that may keep other files of the job.
    why_no_model: "" if one is stored.
    """

    job_id: str
    folder: Path
    model: Path | None
    iteration: int
    files: tuple[Path, ...]
    unstored: tuple[UnstoredFile, ...]
    num_unstored: int
    node_id: str
    left_on: tuple[str, ...]
    why_no_model: str


def load(
    job_id: str,
    *,
    timeout: Duration = STORED_TIMEOUT_S,
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> dict[str, Any]:
    """The state dict of a job's trained model, tensors on the CPU by name: `model.load_state_dict(load(job_id))`.

    Of a job that trains, the model as it is now. Runs no code from the file. timeout: until the model is stored.
    Raises UnknownJob, NothingStored, NotStoredYet, NoModel, ArtifactGone, MissingExtra.
    """
    require_extra("train", "elasticflow.load")
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    with tempfile.TemporaryDirectory(prefix="eflow-") as folder:
        file = Path(folder) / "model.pt"

        async def download(client: Client) -> None:
            artifacts = await client.artifacts(job_id, timeout=timeout)
            await save_model(client, artifacts, file)

        with_client(endpoint, tenant, download)
        return _read_model(file)


def fetch(
    job_id: str,
    *,
    to: Path | str = "",
    model_format: ModelFormat = "torch",
    timeout: Duration = STORED_TIMEOUT_S,
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> Fetched:
    """Write a job's model and the files that it wrote into `to`, by default a folder named as the job.

    Raises as `load` does, except NoModel; and NotConvertible, OutsideOfFolder.
    """
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    folder = Path(to or job_id)
    return with_client(
        endpoint, tenant, lambda client: fetch_with(client, job_id, folder, model_format, timeout=timeout)
    )


async def fetch_with(
    client: Client,
    job_id: str,
    folder: Path,
    model_format: ModelFormat,
    *,
    timeout: Duration = STORED_TIMEOUT_S,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> Fetched:
    """Do what `fetch` does, over a connection. on_bytes: gets how many bytes are written, and of how many."""
    if model_format == "safetensors":
        require_extra("safetensors", "a model as safetensors")
    artifacts = await client.artifacts(job_id, timeout=timeout)
    stored = artifacts.stored
    total = stored.num_bytes
    done = 0

    def on_written(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        on_bytes(done, total)

    model = None
    if stored.model is not None:
        model = folder / _MODEL_NAMES[model_format]
        if model_format == "safetensors":
            await _save_safetensors(client, artifacts, model, on_written)
        else:
            await save_model(client, artifacts, model, on_written)
    targets = {_below(folder / ARTIFACT_FOLDER, file.path): file for file in stored.files}
    targets |= {_below(folder / WORKING_FOLDER, file.path): file for file in stored.outputs}
    for target, file in targets.items():
        await client.save(artifacts, file, target, on_written)
    return Fetched(
        job_id=job_id,
        folder=folder,
        model=model,
        iteration=stored.iteration,
        files=tuple(targets),
        unstored=stored.unstored,
        num_unstored=stored.num_unstored,
        node_id=stored.node_id,
        left_on=artifacts.left_on,
        why_no_model=artifacts.why_no_model,
    )


async def save_model(
    client: Client, artifacts: StoredArtifacts, target: Path, on_written: Callable[[int], None] = lambda num_bytes: None
) -> None:
    if artifacts.stored.model is None:
        raise NoModel(artifacts.stored.job_id, artifacts.why_no_model)
    await client.save(artifacts, artifacts.stored.model, target, on_written)


async def _save_safetensors(
    client: Client, artifacts: StoredArtifacts, target: Path, on_written: Callable[[int], None]
) -> None:
    """Raises NotConvertible. Ctrl-C leaves no file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as unfinished:
        torch_file, converted = Path(unfinished) / _MODEL_NAMES["torch"], Path(unfinished) / target.name
        await save_model(client, artifacts, torch_file, on_written)
        _write_safetensors(_read_model(torch_file), converted)
        converted.replace(target)


def _below(folder: Path, path: str) -> Path:
    """Raises OutsideOfFolder: a link there may lead out, and a drive's name does so on Windows."""
    target = folder / path
    if not target.resolve().is_relative_to(folder.resolve()):
        raise OutsideOfFolder(str(target), str(folder))
    return target


def _read_model(file: Path) -> dict[str, Any]:
    import torch  # an extra

    return torch.load(file, map_location="cpu", weights_only=True)


def _write_safetensors(model: dict[str, Any], target: Path) -> None:
    """Raises NotConvertible."""
    import torch  # an extra
    from safetensors.torch import save_file  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    others = [name for name, value in model.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise NotConvertible(", ".join(sorted(others)[:5]))
    # each with memory of its own: the format knows no shared weights
    tensors = {name: value.detach().contiguous().clone() for name, value in model.items()}
    save_file(tensors, target, metadata={"format": "pt"})
