"""`eflow configure` and `eflow down`: the configuration and the end of a pool."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from elasticflow.cli.command_options import DataDir, Json, NatsUrl, Pool
from elasticflow.cli.terminal_output import note, print_json, say_line
from elasticflow.client.configure_pool import configure as configure_pool
from elasticflow.client.configure_pool import read_config
from elasticflow.client.pool_endpoint import find_endpoint
from elasticflow.local.run_file import DATA_DIR, find_run_file, holder_of, read_run_file
from elasticflow.shared.extras import require_extra
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.process_termination import kill_process_group
from elasticflow.shared.runtime.process.secret_sealing import kept_key
from elasticflow.shared.runtime.process.settings import Settings

_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.1


def configure(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", show_default=False, help="PoolConfig as TOML or JSON."),
    ] = None,
    skip_plan_up_to: Annotated[
        int | None,
        typer.Option(
            "--skip-plan-up-to",
            min=1,
            metavar="SEQUENCE",
            help="Decide despite unreadable messages of the plan up to this sequence.",
        ),
    ] = None,
    secrets_key: Annotated[
        Path | None,
        typer.Option(
            "--secrets-key",
            metavar="FILE",
            help="Seal secrets of jobs for the key in this file, which is made if it is absent. Nodes need the file.",
        ),
    ] = None,
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Configure what the policies of a pool assume, from now on.

    Without FILE a new pool gets the defaults, and a configured pool keeps its
    configuration. With --json the command prints the resulting configuration.

    \b
    Examples:
      eflow configure pool.toml
      eflow configure --nats-url nats://token@host:4222 --pool default
      eflow configure --json | jq .config
      eflow configure --secrets-key /shared/elasticflow/secrets.key
      eflow configure --skip-plan-up-to 1234   (a damaged message stops all decisions)
    """
    wanted = read_config(file) if file is not None else None
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    replicas = Settings.from_environment().replicas
    changes: dict[str, Any] = {} if skip_plan_up_to is None else {"skip_plan_up_to": skip_plan_up_to}
    if secrets_key is not None:
        changes["secrets_key"] = kept_key(secrets_key)
    config = asyncio.run(
        configure_pool(
            endpoint.nats_url,
            endpoint.pool,
            wanted,
            SystemClock(),
            changes=changes,
            stream_replicas=replicas,
        )
    )
    if as_json:
        print_json({"pool": endpoint.pool, "config": config})
    else:
        say_line(f"pool {endpoint.pool} is configured")


def down(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Stop the pool that runs in this folder, in order. Its jobs continue with
    the next `eflow up`.

    \b
    Examples:
      eflow down
      eflow down --data-dir /var/lib/eflow
    """
    if data_dir is None:
        run = find_run_file(Path.cwd())
        data_dir = Path(run.data_dir) if run is not None else Path(DATA_DIR)
    pid = holder_of(data_dir)
    if pid is not None:
        _stop(data_dir, pid)
    if as_json:
        print_json({"stopped": pid is not None, "data_dir": str(data_dir)})
    else:
        say_line(f"stopped the pool in {data_dir}" if pid is not None else f"no pool runs in {data_dir}")


def _stop(data_dir: Path, pid: int) -> None:
    """Ask the supervisor to stop. If it does not, kill it and every process group that it has started."""
    require_extra("server", "eflow down")
    run = read_run_file(data_dir)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if _gone_within(data_dir, pid, _STOP_TIMEOUT_S):
        return
    note(f"process {pid} does not stop; killing it and its processes")
    children = [process.pid for process in run.processes.values()] if run is not None else []
    for target in (pid, *children):
        kill_process_group(target)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(target, signal.SIGKILL)
    _gone_within(data_dir, pid, _STOP_TIMEOUT_S)


def _gone_within(data_dir: Path, pid: int, timeout_s: float) -> bool:
    """Whether the process ends and unlocks the folder in time."""
    give_up_at = time.monotonic() + timeout_s
    while holder_of(data_dir) is not None or _runs(pid):
        if time.monotonic() > give_up_at:
            return False
        time.sleep(_POLL_S)
    return True


def _runs(pid: int) -> bool:
    import psutil  # here: only a machine that runs pools has it

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
