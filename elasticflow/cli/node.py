"""`eflow node`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from elasticflow.cli.command_options import Pool
from elasticflow.cli.option_values import end_of
from elasticflow.cli.up import Device
from elasticflow.shared.extras import require_extra
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.run_module import module_command


def node(
    nats_url: Annotated[
        str,
        typer.Option("--nats-url", envvar="NATS_URL", show_envvar=True, metavar="URL", help="nats://TOKEN@host:port."),
    ],
    data_dir: Annotated[
        Path,
        typer.Option("--data-dir", envvar="EF_DATA_DIR", metavar="DIR", help="Storage that all nodes share."),
    ],
    node_id: Annotated[
        str, typer.Option("--node-id", envvar="EF_NODE_ID", metavar="NAME", help="Default: the name of this machine.")
    ] = "",
    device: Annotated[Device, typer.Option("--device", help="cpu ignores the GPUs.")] = Device.AUTO,
    slots: Annotated[
        int | None,
        typer.Option("--slots", envvar="EF_SLOTS", min=1, metavar="N", help="Default: all GPUs, or the cores."),
    ] = None,
    gpu_type: Annotated[
        str, typer.Option("--gpu-type", envvar="EF_GPU_TYPE", metavar="NAME", help="Default: as the driver names it.")
    ] = "",
    rack: Annotated[
        str, typer.Option("--rack", envvar="EF_RACK", metavar="PATH", help="Place in the network: hall-1/rack-7.")
    ] = "",
    until: Annotated[
        str,
        typer.Option(
            "--until",
            envvar="EF_NODE_UNTIL",
            metavar="TIME",
            help="Its end: 12h, or 2026-05-01T18:00. Default: that of the allocation of Slurm, if this is in one.",
        ),
    ] = "",
    pool: Pool = "",
) -> None:
    """Join a pool with the GPUs of this machine, until Ctrl-C or SIGTERM.

    The node then leaves in order: its workers stop at a step boundary, and
    other nodes take their jobs over. With --until no promise rests on the node
    beyond its end, and its jobs have moved by then. It needs the extra `train`.

    Examples:

      eflow node --nats-url nats://TOKEN@head:4222 --data-dir /shared/elasticflow

      CUDA_VISIBLE_DEVICES=0,1 eflow node --node-id a-01 --nats-url ... --data-dir ...

      eflow node --until 12h --nats-url ... --data-dir ...

      eflow node --device cpu --slots 4 --nats-url ... --data-dir ...
    """
    require_extra("train", "a node")
    chosen = {
        "NATS_URL": nats_url,
        "EF_DATA_DIR": str(data_dir),
        "EF_NODE_ID": node_id,
        "EF_DEVICE": "" if device is Device.AUTO else device.value,
        "EF_SLOTS": str(slots or ""),
        "EF_GPU_TYPE": gpu_type,
        "EF_RACK": rack,
        "EF_NODE_UNTIL": f"{end_of(until, '--until', SystemClock().now_s()):.3f}" if until else "",
        "EF_POOL": pool,
    }
    _become_executor({**os.environ, **{name: value for name, value in chosen.items() if value}})


def _become_executor(environment: Mapping[str, str]) -> None:
    """This process becomes the executor, so that signals and exit codes need no relay."""
    command = module_command("elasticflow.services.executor")
    os.execve(command[0], command, environment)
