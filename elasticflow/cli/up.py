"""`eflow up` and `eflow node`."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from elasticflow.cli.command_options import Json, Pool
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.option_values import future_end_of
from elasticflow.cli.terminal_output import note, plain, print_json, say, say_line
from elasticflow.client.operator_decisions import read_config
from elasticflow.client.pool_endpoint import (
    DATA_DIR,
    DEFAULT_POOL,
    RunFile,
    already_running,
    holder_of,
    make_folder,
    read_run_file,
)
from elasticflow.history.tables import table
from elasticflow.local.up_plan import REPLICABLE, UpPlan
from elasticflow.shared.extras import require_extra, require_one_version
from elasticflow.shared.runtime.bus.nats.client import masked
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.local_hardware import CPU_SLOTS_PART_OF_CORES, num_cores
from elasticflow.shared.runtime.process.run_module import module_command
from elasticflow.shared.runtime.process.settings import Settings

_POLL_S = 0.1
_MAX_PROCESSES = 64  # of one kind on one machine: each takes a second of a core to start, and 60 MB or more
_FOLDER = "--data-dir"


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What runs on this machine."""

    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=0,
            max=_MAX_PROCESSES,
            metavar="N",
            help="Executors to start here. Default: 2, with GPUs 1.",
        ),
    ] = None
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            envvar="EF_SLOTS",
            min=1,
            metavar="N",
            help="CPU slots of each node, its GPUs, or equal parts of them. Default: 4, or all GPUs.",
        ),
    ] = None
    device: Annotated[Device, typer.Option("--device", help="Device of the workers; cpu ignores the GPUs.")] = (
        Device.AUTO
    )
    data_dir: Annotated[
        Path,
        typer.Option(_FOLDER, envvar="EF_DATA_DIR", metavar="DIR", help="Ledger, logs, checkpoints."),
    ] = Path(DATA_DIR)
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the pool runs; `eflow down` stops it.")
    ] = False
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="PoolConfig as TOML or JSON.")] = None
    confidence: Annotated[
        float | None,
        typer.Option(
            "--confidence",
            min=0.5,
            max=0.9999,
            metavar="P",
            help="Probability with which promises are kept. Default: a fixed margin.",
        ),
    ] = None
    reserve: Annotated[
        int | None,
        typer.Option(
            "--reserve",
            min=0,
            max=2,
            metavar="K",
            help="Promises hold with up to K nodes down. Default: 0.",
        ),
    ] = None
    replicas: Annotated[
        tuple[str, ...],
        typer.Option(
            "--replicas",
            metavar="SERVICE=N",
            help=f"Replicas of a service: {', '.join(REPLICABLE)}. Default: 1.",
        ),
    ] = ()
    pool: Pool = ""
    nats_url: Annotated[
        str,
        typer.Option("--nats-url", envvar="NATS_URL", metavar="URL", help="Use this NATS instead of starting one."),
    ] = ""
    nats_host: Annotated[
        str,
        typer.Option(
            "--nats-host",
            metavar="HOST",
            help="Address on which NATS listens; 0.0.0.0 lets other machines join.",
        ),
    ] = "127.0.0.1"
    nats_port: Annotated[
        int,
        typer.Option(
            "--nats-port",
            min=0,
            max=65535,
            metavar="PORT",
            help="Port on which NATS listens; 0 chooses a free one.",
        ),
    ] = 0

    def plan(self) -> UpPlan:
        """Raises typer.BadParameter, BadSettings."""
        return UpPlan(
            data_dir=self.data_dir.absolute(),
            pool=self.pool or DEFAULT_POOL,
            num_nodes=self.nodes,
            slots_per_node=self.slots,
            device=self.device.value,
            replicas=dict(map(_parse_replicas, self.replicas)),
            config=read_config(self.config) if self.config is not None else None,
            changes={
                name: value
                for name, value in (("confidence", self.confidence), ("reserve_nodes", self.reserve))
                if value is not None
            },
            nats_url=self.nats_url,
            nats_host=self.nats_host,
            nats_port=self.nats_port,
            stream_replicas=Settings.from_environment().replicas,
        )


@takes_tables
def up(options: UpOptions, as_json: Json = False) -> None:
    """Start everything on this machine: NATS, four services, and executors
    with CPU slots or GPUs.

    A process that dies is restarted. Ctrl-C stops all processes in order. The
    ledger keeps all jobs, and the next `eflow up` on the same folder continues
    them.

    \b
    Examples:
      eflow up
      eflow up --nodes 1 --slots 8 --detach
      eflow up --replicas admission=3 --config pool.toml
      eflow up --nodes 4 --reserve 1   # one node may fail
      eflow up --nats-host 0.0.0.0 --nats-port 4222   # other machines join
    """
    require_one_version()
    require_extra("server", "eflow up")
    if options.nodes != 0:
        require_extra("train", "eflow up with nodes")
    plan = options.plan()
    if options.detach:
        run = _start_detached(plan.data_dir)
        show_pool(run, as_json, detached=True)
        return
    raise typer.Exit(asyncio.run(_supervise(plan, as_json)))


async def _supervise(plan: UpPlan, as_json: bool) -> int:
    """The exit code: 0 after SIGTERM. Ctrl-C raises KeyboardInterrupt."""
    from elasticflow.local.supervisor import Supervisor  # here: it needs libraries of the extra `server`

    supervising = asyncio.ensure_future(Supervisor(plan, note).run(lambda run: show_pool(run, as_json, detached=False)))
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, supervising.cancel)
    try:
        await supervising
    except asyncio.CancelledError:
        note("stopped")
        if asyncio.current_task().cancelling():  # pyright: ignore[reportOptionalMemberAccess]
            raise
    return 0


def _start_detached(data_dir: Path) -> RunFile:
    """Run the same command in a session of its own. Return once all processes are healthy, or print why it ended.

    If this process ends before that, it terminates the other one.
    """
    pid = holder_of(data_dir)
    if pid is not None:
        raise already_running(data_dir, pid)
    log_file = make_folder(data_dir) / "up.log"
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    arguments = [word for word in sys.argv[1:] if word not in ("--detach", "-d", "--json")]
    with log_file.open("ab") as log, log_file.open() as output:
        output.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            module_command("elasticflow", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                text = output.read()  # before the check: once the pool is healthy, its output repeats ours
                run = read_run_file(data_dir)
                if run is not None and run.pid == process.pid and run.healthy:
                    return run
                note(text, end="")
                time.sleep(_POLL_S)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        note(output.read(), end="")  # the reason of the end
    raise typer.Exit(2)


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _parse_replicas(text: str) -> tuple[str, int]:
    service, _, count = text.partition("=")
    if service not in REPLICABLE or count not in map(str, range(1, _MAX_PROCESSES + 1)):
        raise typer.BadParameter(
            f"{text!r} is not SERVICE=N with one of {', '.join(REPLICABLE)} and N from 1 to {_MAX_PROCESSES}",
            param_hint="--replicas",
        )
    return service, int(count)


def cpu_slots_in_words(num_slots: int, cores_per_slot: float, cores: int) -> tuple[str, ...]:
    """What a CPU slot is, and how to get faster ones."""
    if cores_per_slot >= 1.0:
        return (f"slots {num_slots} CPU slots, each of a whole core (this machine has {cores})",)
    fewer = max(int(CPU_SLOTS_PART_OF_CORES * cores), 1)
    return (
        f"slots {num_slots} CPU slots, each {cores_per_slot:.2g} of a core: a job on one has that part of its speed",
        f"      faster slots: eflow up --nodes 1 --slots {fewer}",
    )


def show_pool(run: RunFile, as_json: bool, *, detached: bool) -> None:
    if as_json:
        print_json({**plain(run), "nats_url": masked(run.nats_url)})
        return
    rows = [
        (name, str(process.pid), f"http://127.0.0.1:{process.metrics_port}" if process.metrics_port else "-")
        for name, process in run.processes.items()
    ]
    say(table("PROCESS", "PID", "METRICS, HEALTH", right=("PID",), rows=rows))
    say_line("")
    say_line(f"pool {run.pool} is up; NATS at {masked(run.nats_url)}, data and logs in {run.data_dir}", "green")
    if run.num_cpu_slots:
        for line in cpu_slots_in_words(run.num_cpu_slots, run.cores_per_cpu_slot, num_cores()):
            say_line(line)
    where = "" if Path(run.data_dir) == Path(DATA_DIR).absolute() else f" --data-dir {shlex.quote(str(run.data_dir))}"
    tries = (f"eflow submit FILE.py --deadline 10m{where}", f"eflow watch{where}", f"eflow ui{where}")
    say_line(f"try   {'     '.join(tries)}")
    say_line(f"stop  {f'eflow down{where}' if detached else 'Ctrl-C'}")


# --- `eflow node` --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """The node that joins."""

    nats_url: Annotated[
        str,
        typer.Option("--nats-url", envvar="NATS_URL", show_envvar=True, metavar="URL", help="nats://TOKEN@host:port."),
    ]
    data_dir: Annotated[
        Path,
        typer.Option(
            "--data-dir",
            envvar="EF_DATA_DIR",
            metavar="DIR",
            help="Storage that all nodes share, unless EF_CHECKPOINT_STORE names a bucket.",
        ),
    ]
    node_id: Annotated[
        str, typer.Option("--node-id", envvar="EF_NODE_ID", metavar="NAME", help="Default: the name of this machine.")
    ] = ""
    device: Annotated[Device, typer.Option("--device", help="cpu ignores the GPUs.")] = Device.AUTO
    slots: Annotated[
        int | None,
        typer.Option("--slots", envvar="EF_SLOTS", min=1, metavar="N", help="Default: all GPUs, or the cores."),
    ] = None
    gpu_type: Annotated[
        str, typer.Option("--gpu-type", envvar="EF_GPU_TYPE", metavar="NAME", help="Default: as the driver names it.")
    ] = ""
    rack: Annotated[
        str, typer.Option("--rack", envvar="EF_RACK", metavar="PATH", help="Place in the network: hall-1/rack-7.")
    ] = ""
    until: Annotated[
        str,
        typer.Option(
            "--until",
            envvar="EF_NODE_UNTIL",
            metavar="TIME",
            help="Its end: 12h, or 2026-05-01T18:00. Default: that of the allocation of Slurm, if this is in one.",
        ),
    ] = ""
    until_notice: Annotated[
        str,
        typer.Option(
            "--until-notice",
            envvar="EF_UNTIL_NOTICE",
            metavar="SOURCE",
            help="What announces its end later: aws, gcp, azure, slurm or file:PATH.",
        ),
    ] = ""
    pool: Pool = ""

    def environment(self) -> dict[str, str]:
        """The variables of the executor that are given. Raises typer.BadParameter."""
        chosen = {
            "NATS_URL": self.nats_url,
            "EF_DATA_DIR": str(self.data_dir),
            "EF_NODE_ID": self.node_id,
            "EF_DEVICE": "" if self.device is Device.AUTO else self.device.value,
            "EF_SLOTS": str(self.slots or ""),
            "EF_GPU_TYPE": self.gpu_type,
            "EF_RACK": self.rack,
            "EF_NODE_UNTIL": f"{future_end_of(self.until, '--until', SystemClock().now_s()):.3f}" if self.until else "",
            "EF_UNTIL_NOTICE": self.until_notice,
            "EF_POOL": self.pool,
        }
        return {name: value for name, value in chosen.items() if value}


@takes_tables
def node(options: NodeOptions) -> None:
    """Join a pool with the GPUs of this machine, until Ctrl-C or SIGTERM.

    The node then leaves in order: its workers stop at a step boundary, and
    other nodes take their jobs over. With --until no promise rests on the node
    beyond its end, and its jobs have moved by then. With --until-notice it asks
    the cloud, Slurm or a file for that end all the time: spot machines learn it
    late. It needs the extra `train`.

    \b
    Examples:
      eflow node --nats-url nats://TOKEN@head:4222 --data-dir /shared/elasticflow
      CUDA_VISIBLE_DEVICES=0,1 eflow node --node-id a-01 \\
        --nats-url nats://TOKEN@head:4222 --data-dir /shared/elasticflow
      eflow node --until 12h --nats-url ... --data-dir ...
      eflow node --until-notice aws --nats-url ... --data-dir ...
      eflow node --device cpu --slots 4 --nats-url ... --data-dir ...
    """
    require_extra("train", "a node")
    _become_executor({**os.environ, **options.environment()})


def _become_executor(environment: Mapping[str, str]) -> None:
    """This process becomes the executor, so that signals and exit codes need no relay."""
    command = module_command("elasticflow.services.executor")
    os.execve(command[0], command, environment)
