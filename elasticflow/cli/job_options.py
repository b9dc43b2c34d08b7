"""The options of a job: each is declared once, with the commands that have it, what it means and what it sets."""

import io
import shlex
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from elasticflow.cli.command_options import PoolOptions, run
from elasticflow.cli.option_table import In, Row, rows_of
from elasticflow.cli.option_values import (
    deadline_of,
    duration_of,
    parse_data,
    parse_gpus,
    parse_setting,
    parse_sweep,
    parse_variable,
    read_secret,
    require_future,
    size_of,
)
from elasticflow.client.command_requests import Package
from elasticflow.errors import InvalidJob, did_you_mean
from elasticflow.sdk.job import ElasticJob
from elasticflow.sdk.job_fields import undeclared
from elasticflow.sdk.script import Script
from elasticflow.sdk.submission import load
from elasticflow.shared.messages.job_spec import TORCHRUN, Scalar

# --- What options mean and set -------------------------------------------------------------------------


class ClassName(StrEnum):
    """Job classes as a command line spells them."""

    SLO = "slo"
    SOFT = "soft"
    BEST_EFFORT = "best-effort"
    PADDING = "padding"


def class_named(text: str) -> ClassName:
    """The class of this name, also as tables, JSON and the SDK print it: best_effort."""
    name = text.lower().replace("_", "-").replace(" ", "-")
    if name not in list(ClassName):
        near = did_you_mean(name, ClassName)
        raise typer.BadParameter(
            f"{text!r} is no class; choose one of {', '.join(ClassName)}{near}", param_hint="--class"
        )
    return ClassName(name)


def _set_settings(job: ElasticJob, settings: dict[str, Scalar]) -> None:
    problems = undeclared(type(job).__name__, job.hyperparameters, settings, "--set")
    if problems and not isinstance(job, Script):
        raise InvalidJob(*problems)
    job.set_hyperparameter(**settings)  # pyright: ignore[reportArgumentType]


def _attribute(name: str) -> Callable[[ElasticJob, Any], None]:
    return lambda job, value: setattr(job, name, value)


# --- The table -----------------------------------------------------------------------------------------

_SUBMIT = ("submit",)  # each of these has all commands of that before it
_QUOTE = (*_SUBMIT, "quote")
_PROFILE = (*_QUOTE, "profile")
_RUN = (*_PROFILE, "run")
_EVERY = (*_RUN, "train")
_PROJECT = "The project as it is"


def _timeout(of: str) -> In:
    """of: what may take so long, as `set_timeouts` names it."""
    option = f"--{of}-timeout"
    return In(_PROFILE, lambda text: duration_of(text, option), lambda job, limit_s: job.set_timeouts(**{of: limit_s}))


When = Annotated[
    str,
    typer.Option("--deadline", metavar="WHEN", help="90s, 15m, 2h30m, 1d from now, or a time: 2026-05-01T18:00."),
    In(_QUOTE, deadline_of, lambda job, end: job.set_deadline(end.deadline, within=end.within)),
]
NumIterations = Annotated[
    int | None,
    typer.Option("--iterations", metavar="N", help="Total number of iterations."),
    In((*_QUOTE, "run", "train"), sets=lambda job, number: job.term_condition(max_iterations=number)),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionOptions:
    """Options of the command line. They override the declarations of the job's class."""

    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:CLASS]|MODULE:CLASS|JOB.toml",
            help="Your subclass of ElasticJob, or a script that calls elastic(); or a job file that names one.",
        ),
        In(_EVERY),
    ]
    arguments: Annotated[
        tuple[str, ...],
        typer.Argument(metavar="[-- ARGUMENT...]", help="Arguments of a script.", show_default=False),
        In(_PROFILE),
    ] = ()
    torchrun: Annotated[
        bool,
        typer.Option("--torchrun", help="Run the script unchanged; each resize restarts it from its snapshot."),
        In(_PROFILE),
    ] = False
    batch_per_worker: Annotated[
        int | None,
        typer.Option("--batch-per-worker", metavar="N", help="With --torchrun: samples of each worker in a step."),
        In(_PROFILE, sets=lambda job, number: job.set_hyperparameter(batch_per_worker=number)),
    ] = None
    deadline: When = ""
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", help="Global batch size: samples an iteration."),
        In(_EVERY, sets=lambda job, number: job.set_hyperparameter(global_batch_size=number)),
    ] = None
    iterations: NumIterations = None
    settings: Annotated[
        tuple[str, ...],
        typer.Option("--set", metavar="NAME=VALUE", help="A hyperparameter; may be given several times."),
        In(_EVERY, lambda texts: dict(map(parse_setting, texts)), _set_settings),
    ] = ()
    workdir: Annotated[
        Path | None,
        typer.Option(
            "--workdir",
            metavar="DIR",
            rich_help_panel=_PROJECT,
            help="Send this whole folder, but for what its .eflowignore names. "
            "Default: what the file imports from beside.",
        ),
        In(_RUN, help_of={"run": "The folder from which the job's code is imported. Default: that of the file."}),
    ] = None
    environment: Annotated[
        tuple[str, ...],
        typer.Option(
            "--env",
            metavar="NAME=VALUE",
            rich_help_panel=_PROJECT,
            help="A variable of the job's processes; may be given several times. Every user of the pool can read it.",
        ),
        In(
            _RUN,
            lambda texts: dict(map(parse_variable, texts)),
            lambda job, variables: job.set_environment(variables),
            {"run": "A variable of the job; may be given several times."},
        ),
    ] = ()
    secrets: Annotated[
        tuple[str, ...],
        typer.Option(
            "--secret",
            metavar="NAME|NAME=@FILE",
            rich_help_panel=_PROJECT,
            help="A variable that only the nodes can read; its value is that of your environment, or of a file.",
        ),
        In(_PROFILE),
    ] = ()
    requirement: Annotated[
        Path | None,
        typer.Option(
            "--requirement",
            metavar="FILE",
            rich_help_panel=_PROJECT,
            help="Packages that each node installs once: requirements.txt, or pyproject.toml for its dependencies.",
        ),
        In(_PROFILE, sets=lambda job, file: job.set_requirements(file)),
    ] = None
    own_environment: Annotated[
        Path | None,
        typer.Option(
            "--environment",
            metavar="FILE",
            rich_help_panel=_PROJECT,
            help="A Python environment of the job's own, from uv.lock, requirements.txt or pyproject.toml.",
        ),
        In(_PROFILE, sets=lambda job, file: job.set_own_environment(file)),
    ] = None
    python: Annotated[
        str,
        typer.Option(
            "--python",
            metavar="VERSION",
            rich_help_panel=_PROJECT,
            help="The Python of the job's own environment: 3.11, 3.12 or 3.13. Default: that of each node.",
        ),
        In(_PROFILE, sets=lambda job, version: job.set_own_environment(python=version)),
    ] = ""
    data: Annotated[
        tuple[str, ...],
        typer.Option(
            "--data",
            metavar="NAME=URI",
            rich_help_panel=_PROJECT,
            help="Data that each node fetches once (s3://, gs://, ...), or a path there; `data_path(NAME)` finds it.",
        ),
        In(
            _RUN,
            parse_data,
            lambda job, uris: job.set_data(uris),
            {"run": "NAME=PATH: data on this machine; `data_path(NAME)` finds it."},
        ),
    ] = ()
    sweep: Annotated[
        tuple[str, ...],
        typer.Option(
            "--sweep",
            metavar="NAME=VALUE,...",
            help="One job for each value of a hyperparameter; given several times, for each combination, 1000 at most.",
        ),
        In(_SUBMIT, parse_sweep),
    ] = ()
    gpus: Annotated[
        str,
        typer.Option(
            "--gpus",
            metavar="N|MIN..MAX",
            help="For a job that runs on no other number of GPUs: 4, 2..8, 2.. or ..8.",
        ),
        In(_PROFILE, parse_gpus, lambda job, ends: job.set_gpus(min_gpus=ends[0], max_gpus=ends[1])),
    ] = ""
    gpus_per_replica: Annotated[
        int | None,
        typer.Option(
            "--gpus-per-replica",
            metavar="N",
            help="So many GPUs of one node hold the model together: 1, 2, 4, 8, ...",
        ),
        In(_PROFILE, sets=lambda job, number: job.set_gpus(gpus_per_replica=number)),
    ] = None
    gpu_type: Annotated[
        str,
        typer.Option(
            "--gpu-type",
            metavar="TYPE[,TYPE...]",
            show_default=False,
            help="Of all its GPUs, as `eflow nodes` shows it; of several the pool chooses. Default: any.",
        ),
        In(_PROFILE, sets=lambda job, gpu_type: job.set_gpus(gpu_type=gpu_type)),
    ] = ""
    gpu_memory: Annotated[
        str,
        typer.Option("--gpu-memory", metavar="SIZE", help="Of each GPU, at least: 512MiB, 8GiB. Default: any."),
        In(
            _PROFILE,
            lambda text: size_of(text, "--gpu-memory"),
            lambda job, num_bytes: job.set_gpus(gpu_memory_bytes=num_bytes),
        ),
    ] = ""
    mixed: Annotated[
        bool,
        typer.Option(
            "--mixed",
            help="Idle GPUs of other types may join a bitwise job too; other bits. --gpus limits each type.",
        ),
        In(_PROFILE, sets=_attribute("mixed_gpu_types")),
    ] = False
    shard_optimizer: Annotated[
        bool,
        typer.Option(
            "--shard-optimizer", help="Let each GPU hold a part of the optimizer's state only (ZeRO, stage 1)."
        ),
        In(_PROFILE, sets=_attribute("shard_optimizer")),
    ] = False
    start_timeout: Annotated[
        str,
        typer.Option(
            "--start-timeout",
            metavar="DURATION",
            help="A start may take so long, such as init_model(): 90s, 10m. Default: the pool's time without a step.",
        ),
        _timeout("start"),
    ] = ""
    stall_timeout: Annotated[
        str,
        typer.Option(
            "--stall-timeout",
            metavar="DURATION",
            help="The job may go on so long without a step: 90s, 10m. Default: as in the pool.",
        ),
        _timeout("stall"),
    ] = ""
    job_class: Annotated[
        ClassName | None,
        typer.Option(
            "--class",
            parser=class_named,
            metavar="slo|soft|best-effort|padding",
            help="slo: deadline kept or job rejected. soft: tried. best-effort: no deadline. padding: lowest priority.",
        ),
        In(_SUBMIT, sets=lambda job, name: job.set_job_class(name.value.replace("-", "_"))),
    ] = None
    priority: Annotated[
        float | None,
        typer.Option(
            "--priority",
            metavar="P",
            help="Weight beside other jobs of its tenant without a promise; 2 counts double. Default: 1.",
        ),
        In(_SUBMIT, sets=lambda job, priority: job.set_priority(priority)),
    ] = None
    name: Annotated[
        str,
        typer.Option("--name", metavar="ID", help="Id of the job. Resubmitting the same job under it has no effect."),
        In(_SUBMIT),
    ] = ""
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="JOB[@ITERATION]",
            show_default=False,
            help="Begin from the newest checkpoint of an ended job, or of an iteration; --iterations counts its own.",
        ),
        In(_SUBMIT),
    ] = ""
    quote: Annotated[
        str,
        typer.Option(
            "--quote",
            metavar="ID",
            help="Take a reserved quote, with its deadline unless --deadline is given.",
        ),
        In(_SUBMIT),
    ] = ""
    where: tuple[str, ...] = ()  # options that name the pool, for the command line that is printed

    def command(self) -> str:
        """The command line with these options, quoted for a shell."""
        words = [word for row in rows_of(self) if row.word for word in row.words(self)]
        script = ("--", *self.arguments) if self.arguments else ()
        return shlex.join(["eflow", "submit", self.target, *words, *self.where, *script])

    @property
    def entry(self) -> str:
        """The target; with --torchrun, the target as a torchrun script."""
        return f"{self.target}:{TORCHRUN}" if self.torchrun else self.target

    def load(self) -> tuple[ElasticJob, Package | None]:
        """The job that the options name, without them, and its code. Raises InputUnusable, typer.BadParameter."""
        job, code = load(self.entry, self.arguments, self.workdir)
        if self.workdir is not None and code is not None:
            self._refuse_sent_secrets(self.workdir, zipfile.ZipFile(io.BytesIO(code.archive)).namelist())
        return job, code

    def _refuse_sent_secrets(self, workdir: Path, sent: Sequence[str]) -> None:
        """The file of a secret must not be among those that are stored in clear."""
        from elasticflow.sdk.workdir import IGNORE_FILE  # its library is needed for a workdir only

        for name, is_file, file in (text.partition("=@") for text in self.secrets):
            path = Path(file).resolve()
            if is_file and path.is_relative_to(workdir.resolve()):
                inside = path.relative_to(workdir.resolve()).as_posix()
                if inside in sent:
                    raise typer.BadParameter(
                        f"{name}: {file} is in the workdir and would be sent in clear; write the line /{inside} into "
                        f"{workdir / IGNORE_FILE}",
                        param_hint="--secret",
                    )

    def checked(self, now_s: float) -> Self:
        """The same, before anything is imported or sent: each text has a meaning, and the deadline is to come."""
        for row, meaning in self._meanings():
            if row.name == "deadline":
                require_future(meaning, now_s)
        return self

    def apply(self, job: ElasticJob) -> ElasticJob:
        """Apply the options to the job: the last ones first, so that --batch prevails over --set."""
        for row, meaning in reversed(self._meanings()):
            row.use.sets(job, meaning)
        return job

    def _meanings(self) -> list[tuple[Row, Any]]:
        """The options that are given, with what their texts mean. Raises typer.BadParameter."""
        values = ((row, getattr(self, row.name)) for row in rows_of(self))
        return [(row, row.use.means(value)) for row, value in values if value != row.default]


def seal_secrets(job: ElasticJob, secrets: Sequence[str], where: PoolOptions) -> None:
    """Give the job variables that only the nodes of the pool can read. secrets: values of --secret."""
    if secrets:
        values = dict(map(read_secret, secrets))
        job.set_sealed_secrets(run(lambda client: client.seal(values), where))
