"""Options that describe a job: its code, its hyperparameters and its GPUs."""

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:CLASS]|MODULE:CLASS|JOB.toml",
        help="Your subclass of ElasticJob, or a script that calls elastic(); or a job file that names one.",
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ARGUMENT...]", help="Arguments of a script.", show_default=False),
]
Batch = Annotated[int | None, typer.Option("--batch", metavar="N", help="Global batch size: samples an iteration.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A hyperparameter; may be given several times."),
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="NAME=VALUE,...",
        help="One job for each value of a hyperparameter; given several times, for each combination, 1000 at most.",
    ),
]
Gpus = Annotated[
    str,
    typer.Option(
        "--gpus",
        metavar="N|MIN..MAX",
        help="For a job that runs on no other number of GPUs: 4, 2..8, 2.. or ..8.",
    ),
]
GpuType = Annotated[
    str,
    typer.Option(
        "--gpu-type",
        metavar="TYPE[,TYPE...]",
        show_default=False,
        help="Of all its GPUs, as `eflow nodes` shows it; of several the pool chooses. Default: any.",
    ),
]
GpuMemory = Annotated[
    str,
    typer.Option("--gpu-memory", metavar="SIZE", help="Of each GPU, at least: 512MiB, 8GiB. Default: any."),
]
Mixed = Annotated[
    bool,
    typer.Option(
        "--mixed",
        help="Idle GPUs of other types may join a bitwise job too; other bits. --gpus limits each type.",
    ),
]
ShardOptimizer = Annotated[
    bool,
    typer.Option("--shard-optimizer", help="Let each GPU hold a part of the optimizer's state only (ZeRO, stage 1)."),
]
Torchrun = Annotated[
    bool,
    typer.Option("--torchrun", help="Run the script unchanged; each resize restarts it from its snapshot."),
]
BatchPerWorker = Annotated[
    int | None,
    typer.Option("--batch-per-worker", metavar="N", help="With --torchrun: samples of each worker in a step."),
]
_PROJECT = "The project as it is"
Workdir = Annotated[
    Path | None,
    typer.Option(
        "--workdir",
        metavar="DIR",
        rich_help_panel=_PROJECT,
        help="Send this whole folder, but for what its .eflowignore names. Default: what the file imports from beside.",
    ),
]
Environment = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        rich_help_panel=_PROJECT,
        help="A variable of the job's processes; may be given several times. Every user of the pool can read it.",
    ),
]
Secret = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME|NAME=@FILE",
        rich_help_panel=_PROJECT,
        help="A variable that only the nodes can read; its value is that of your environment, or of a file.",
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="NAME=URI",
        rich_help_panel=_PROJECT,
        help="Data that each node fetches once (s3://, gs://, ...), or a path there; `data_path(NAME)` finds it.",
    ),
]
Requirement = Annotated[
    Path | None,
    typer.Option(
        "--requirement",
        metavar="FILE",
        rich_help_panel=_PROJECT,
        help="Packages that each node installs once: requirements.txt, or pyproject.toml for its dependencies.",
    ),
]
