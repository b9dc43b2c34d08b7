"""Options of several commands, the options of a submission, and the connection to the pool that they name."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import typer

from elasticflow.cli.option_values import (
    deadline_of,
    parse_data,
    parse_gpus,
    parse_setting,
    parse_variable,
    read_secret,
    require_future,
    size_of,
)
from elasticflow.cli.terminal_output import note
from elasticflow.client.client import Client
from elasticflow.client.ledger import ExportedLedger
from elasticflow.client.pool_endpoint import Endpoint, find_endpoint
from elasticflow.errors import InvalidJob, did_you_mean
from elasticflow.sdk.job import ElasticJob
from elasticflow.sdk.job_fields import undeclared
from elasticflow.sdk.script import Script
from elasticflow.shared.messages.job_spec import TORCHRUN, Scalar
from elasticflow.times import Deadline

T = TypeVar("T")

_WHERE = "Which pool"

NatsUrl = Annotated[
    str,
    typer.Option(
        "--nats-url",
        envvar="NATS_URL",
        show_envvar=True,
        show_default=False,
        metavar="URL",
        rich_help_panel=_WHERE,
        help="NATS server, nats://TOKEN@host:port. Default: the pool that `eflow up` runs here.",
    ),
]
Pool = Annotated[
    str,
    typer.Option(
        "--pool",
        envvar="EF_POOL",
        metavar="NAME",
        rich_help_panel=_WHERE,
        show_default=False,
        help="Name of the pool on that server.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="EF_DATA_DIR",
        metavar="DIR",
        rich_help_panel=_WHERE,
        show_default=False,
        help="Folder of a pool on this machine. Default: the nearest .eflow, here or above.",
    ),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        rich_help_panel=_WHERE,
        show_default=False,
        help="Read a ledger that `eflow events export` wrote instead of a pool.",
    ),
]
When = Annotated[
    str,
    typer.Option("--deadline", metavar="WHEN", help="90s, 15m, 2h30m, 1d from now, or a time: 2026-05-01T18:00."),
]
NumIterations = Annotated[int | None, typer.Option("--iterations", metavar="N", help="Total number of iterations.")]
Tenant = Annotated[
    str,
    typer.Option("--tenant", envvar="EF_TENANT", metavar="NAME", help="Tenant whose quota counts. Default: default."),
]


def remember_json(context: typer.Context, as_json: bool) -> bool:
    """Keep the option for the handler that prints a failure of the command."""
    context.meta[AS_JSON] = as_json
    return as_json


AS_JSON = "as_json"  # key in a context's meta
Json = Annotated[bool, typer.Option("--json", callback=remember_json, help="Print one JSON value instead of a table.")]


def where_words(context: typer.Context) -> tuple[str, ...]:
    """The options that name the pool, as the user typed them. A suggested command repeats them."""
    typed = {"--nats-url": "nats_url", "--pool": "pool", "--data-dir": "data_dir"}
    return tuple(
        word
        for option, parameter in typed.items()
        if (source := context.get_parameter_source(parameter)) is not None and source.name == "COMMANDLINE"
        for word in (option, str(context.params[parameter]))
    )


def run(
    call: Callable[[Client], Awaitable[T]],
    *,
    nats_url: str,
    pool: str,
    data_dir: Path | None,
    tenant: str = "",
) -> T:
    """Connect to the pool that the options name, make the call, and disconnect."""
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return run_at(endpoint, call, tenant=tenant)


def read(call: Callable[[Client | ExportedLedger], Awaitable[T]], *, file: Path | None, **where: Any) -> T:
    """Make the call on an exported ledger, or without a file on the pool. where: as `run`."""
    if file is None:
        return run(call, **where)

    async def on_file() -> T:
        return await call(ExportedLedger(file))

    return asyncio.run(on_file())


def run_at(endpoint: Endpoint, call: Callable[[Client], Awaitable[T]], *, tenant: str = "") -> T:
    async def connected() -> T:
        async with Client.connect(endpoint, tenant=tenant) as client:
            result = await call(client)
            for line in () if client.view is None else client.view.notes(client.now_s()):
                note(f"eflow: {line}")
            return result

    return asyncio.run(connected())


def seal_secrets(job: ElasticJob, secrets: Sequence[str], **where: Any) -> None:
    """Give the job variables that only the nodes of the pool can read. secrets: values of --secret; where: as `run`."""
    if secrets:
        values = dict(map(read_secret, secrets))
        job.set_sealed_secrets(run(lambda client: client.seal(values), **where))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """What the texts of a submission's options mean."""

    deadline: Deadline
    settings: dict[str, Scalar]
    environment: dict[str, str]
    data: dict[str, str]
    gpus: tuple[int | None, int | None]
    gpu_memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionOptions:
    """Options of the command line. They override the declarations of the job's class."""

    target: str
    arguments: tuple[str, ...] = ()  # of a script
    torchrun: bool = False  # run the script unchanged
    batch_per_worker: int | None = None
    deadline: str = ""
    batch: int | None = None
    iterations: int | None = None
    settings: tuple[str, ...] = ()
    workdir: Path | None = None
    environment: tuple[str, ...] = ()
    requirement: Path | None = None
    data: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    gpus: str = ""
    gpu_type: str = ""
    gpu_memory: str = ""
    mixed: bool = False
    shard_optimizer: bool = False
    job_class: ClassName | None = None
    name: str = ""
    quote: str = ""  # id of a reserved quote that this submission takes
    tenant: str = ""
    where: tuple[str, ...] = ()  # options that name the pool

    def command(self) -> str:
        """The command line with these options, quoted for a shell."""
        words = ["eflow", "submit", self.target, *(["--torchrun"] if self.torchrun else [])]
        options = {
            "--workdir": self.workdir,
            "--requirement": self.requirement,
            "--batch-per-worker": self.batch_per_worker,
            "--deadline": self.deadline,
            "--batch": self.batch,
            "--iterations": self.iterations,
            "--gpus": self.gpus,
            "--gpu-type": self.gpu_type,
            "--gpu-memory": self.gpu_memory,
            "--class": self.job_class,
            "--name": self.name,
            "--quote": self.quote,
            "--tenant": self.tenant,
        }
        for option, value in options.items():
            words += [option, str(value)] if value not in ("", None) else []
        words += ["--mixed"] if self.mixed else []
        words += ["--shard-optimizer"] if self.shard_optimizer else []
        for setting in self.settings:
            words += ["--set", setting]
        for variable in self.environment:
            words += ["--env", variable]
        for data in self.data:
            words += ["--data", data]
        for secret in self.secrets:
            words += ["--secret", secret]
        words += self.where
        return shlex.join([*words, "--", *self.arguments] if self.arguments else words)

    @property
    def entry(self) -> str:
        """The target; with --torchrun, the target as a torchrun script."""
        return f"{self.target}:{TORCHRUN}" if self.torchrun else self.target

    def checked(self, now_s: float) -> Self:
        """The same, before anything is imported or sent: each text has a meaning, and the deadline is to come."""
        require_future(self._values().deadline, now_s)
        return self

    def _values(self) -> _Values:
        return _Values(
            deadline=deadline_of(self.deadline),
            settings=dict(map(parse_setting, self.settings)),
            environment=dict(map(parse_variable, self.environment)),
            data=parse_data(self.data),
            gpus=parse_gpus(self.gpus) if self.gpus else (None, None),
            gpu_memory_bytes=size_of(self.gpu_memory, "--gpu-memory") if self.gpu_memory else None,
        )

    def apply(self, job: ElasticJob) -> ElasticJob:
        """Apply the options to the job."""
        values = self._values()
        if self.deadline:
            job.set_deadline(values.deadline.deadline, within=values.deadline.within)
        if self.job_class is not None:
            job.set_job_class(self.job_class.value.replace("-", "_"))  # pyright: ignore[reportArgumentType]
        settings: dict[str, Any] = values.settings
        if not isinstance(job, Script) and (
            problems := undeclared(type(job).__name__, job.hyperparameters, settings, "--set")
        ):
            raise InvalidJob(*problems)
        if self.batch_per_worker is not None:
            settings["batch_per_worker"] = self.batch_per_worker
        if self.batch is not None:
            settings["global_batch_size"] = self.batch
        job.set_hyperparameter(**settings)
        job.set_environment(values.environment)
        job.set_data(values.data)
        if self.requirement is not None:
            job.set_requirements(self.requirement)
        job.set_gpus(min_gpus=values.gpus[0], max_gpus=values.gpus[1], gpu_memory_bytes=values.gpu_memory_bytes)
        if self.gpu_type:
            job.set_gpus(gpu_type=self.gpu_type)
        if self.mixed:
            job.mixed_gpu_types = True
        if self.shard_optimizer:
            job.shard_optimizer = True
        return job.term_condition(max_iterations=self.iterations)
