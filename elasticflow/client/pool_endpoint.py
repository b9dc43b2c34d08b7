"""The pool of a command: named by the user, from the environment, or the one that runs in this folder."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticflow.client.run_file import RunFile, find_run_file, read_run_file
from elasticflow.errors import NoPoolHere
from elasticflow.shared.runtime.process.variables import check_names

DEFAULT_POOL = "default"
DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """data_dir: folder of the pool's worker logs and checkpoints on this machine, None if unknown."""

    nats_url: str
    pool: str
    data_dir: Path | None = None


def find_endpoint(
    *,
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
    environment: Mapping[str, str] | None = None,
    start: Path | None = None,
) -> Endpoint:
    """nats_url, else NATS_URL, else the pool that runs in data_dir, else that of the nearest `.eflow` upwards.

    Raises NoPoolHere, and BadSettings for a variable that is nearly one of ours.
    """
    environment = os.environ if environment is None else environment
    check_names(environment)
    start = start or Path.cwd()
    if data_dir is None and environment.get("EF_DATA_DIR"):
        data_dir = Path(environment["EF_DATA_DIR"])
    pool = pool or environment.get("EF_POOL", "")
    nats_url = nats_url or environment.get("NATS_URL", "")
    run = read_run_file(data_dir) if data_dir is not None else find_run_file(start)
    if nats_url:
        return Endpoint(nats_url=nats_url, pool=pool or DEFAULT_POOL, data_dir=data_dir or _data_dir_of(run, nats_url))
    if run is None:
        raise NoPoolHere(looked_in=str(data_dir or start))
    return Endpoint(nats_url=run.nats_url, pool=pool or run.pool, data_dir=Path(run.data_dir))


def _data_dir_of(run: RunFile | None, nats_url: str) -> Path | None:
    return Path(run.data_dir) if run is not None and run.nats_url == nats_url else None
