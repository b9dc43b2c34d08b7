"""The options of a submission, and the command line that repeats them."""

import json
import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import typer

from elasticflow.sdk.job import ElasticJob
from elasticflow.sdk.times import Deadline, parse_deadline, seconds_of
from elasticflow.shared.messages.job_spec import TORCHRUN, Scalar


class ClassName(StrEnum):
    """Job classes as a command line spells them."""

    SLO = "slo"
    SOFT = "soft"
    BEST_EFFORT = "best-effort"
    PADDING = "padding"


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
    gpus: str = ""
    job_class: ClassName | None = None
    name: str = ""
    quote: str = ""  # id of a reserved quote that this submission takes
    tenant: str = ""
    where: tuple[str, ...] = ()  # options that name the pool

    def command(self) -> str:
        """The command line with these options, quoted for a shell."""
        words = ["eflow", "submit", self.target, *(["--torchrun"] if self.torchrun else [])]
        options = {
            "--batch-per-worker": self.batch_per_worker,
            "--deadline": self.deadline,
            "--batch": self.batch,
            "--iterations": self.iterations,
            "--gpus": self.gpus,
            "--class": self.job_class,
            "--name": self.name,
            "--quote": self.quote,
            "--tenant": self.tenant,
        }
        for option, value in options.items():
            words += [option, str(value)] if value not in ("", None) else []
        for setting in self.settings:
            words += ["--set", setting]
        words += self.where
        return shlex.join([*words, "--", *self.arguments] if self.arguments else words)

    @property
    def entry(self) -> str:
        """The target; with --torchrun, the target as a torchrun script."""
        return f"{self.target}:{TORCHRUN}" if self.torchrun else self.target

    def apply(self, job: ElasticJob) -> ElasticJob:
        """Apply the options to the job."""
        if self.deadline:
            deadline = deadline_of(self.deadline)
            job.set_deadline(deadline.deadline, within=deadline.within)
        if self.job_class is not None:
            job.set_job_class(self.job_class.value.replace("-", "_"))  # pyright: ignore[reportArgumentType]
        settings: dict[str, Any] = dict(map(parse_setting, self.settings))
        if self.batch_per_worker is not None:
            settings["batch_per_worker"] = self.batch_per_worker
        if self.batch is not None:
            settings["global_batch_size"] = self.batch
        job.set_hyperparameter(**settings)
        if self.gpus:
            min_gpus, max_gpus = parse_gpus(self.gpus)
            job.set_gpus(min_gpus=min_gpus, max_gpus=max_gpus)
        return job.term_condition(max_iterations=self.iterations)


def deadline_of(text: str) -> Deadline:
    """The value of --deadline; neither absolute nor relative if the option is not given."""
    try:
        return parse_deadline(text) if text else Deadline()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--deadline") from None


def duration_of(text: str, option: str) -> float | None:
    """Seconds; None if the option is not given."""
    try:
        return seconds_of(text) if text else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def parse_gpus(text: str) -> tuple[int | None, int | None]:
    """Least and most GPUs of "4" (no others), "2..8", "2.." or "..8"; None for an open end."""
    least, separator, most = text.partition("..")
    ends = [end for end in (least, most) if end]
    if not ends or not all(end.isascii() and end.isdigit() for end in ends):
        raise typer.BadParameter(f"{text!r} is not like 4, 2..8, 2.. or ..8", param_hint="--gpus")
    most = most if separator else least
    return int(least) if least else None, int(most) if most else None


def parse_setting(text: str) -> tuple[str, Scalar]:
    """NAME=VALUE; the value is a number or boolean if it is valid JSON of one, else text."""
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
    try:
        parsed = json.loads(value)
    except ValueError:
        return name, value
    return name, parsed if isinstance(parsed, bool | int | float) else value
