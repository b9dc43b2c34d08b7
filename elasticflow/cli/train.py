"""`eflow train`: a job as tasks of a padding load, managed from this machine."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from elasticflow.cli.command_options import Json, TenantOptions
from elasticflow.cli.job_options import SubmissionOptions
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.option_values import duration_of
from elasticflow.cli.terminal_output import print_json, say_line
from elasticflow.client.training_load import TrainingOptions, TrainingProgress
from elasticflow.sdk.submission import load, with_code
from elasticflow.sdk.training import train_submission
from elasticflow.shared.messages.event_summary import counted
from elasticflow.shared.runtime.process.terminal import console

_ESTIMATES = "Estimates for admission"


class Device(StrEnum):
    """Devices as a command line spells them."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """How this machine manages the tasks, and what it tells admission of them."""

    micro_batch: Annotated[
        int, typer.Option("--micro-batch", metavar="N", min=0, help="Most samples of one forward pass. 0: no limit.")
    ] = 0
    device: Annotated[Device, typer.Option("--device", help="Of the manager: for the optimizer, and to evaluate.")] = (
        Device.CPU
    )
    address: Annotated[
        str,
        typer.Option("--address", metavar="HOST", help="This machine for the nodes. Default: as NATS sees it."),
    ] = ""
    task: Annotated[
        str,
        typer.Option("--task", metavar="TIME", rich_help_panel=_ESTIMATES, help="Of one task. Default: measured here."),
    ] = ""
    overhead: Annotated[
        str,
        typer.Option(
            "--overhead", metavar="TIME", rich_help_panel=_ESTIMATES, help="Of one task. Default: by its bytes."
        ),
    ] = ""

    def of_training(self, checkpoint_every: str) -> TrainingOptions:
        """Raises typer.BadParameter, InvalidJob."""
        return TrainingOptions(
            checkpoint_every_s=duration_of(checkpoint_every, "--checkpoint-every") or 0.0,
            micro_batch_size=self.micro_batch,
            device=self.device.value,
            advertise_host=self.address,
            task_s=duration_of(self.task, "--task"),
            overhead_s=duration_of(self.overhead, "--overhead"),
        )


@takes_tables
def train(
    *,
    checkpoint: Annotated[
        Path, typer.Option("--checkpoint", metavar="DIR", help="Folder of checkpoints; continues from the newest one.")
    ],
    checkpoint_every: Annotated[
        str, typer.Option("--checkpoint-every", metavar="TIME", help="Time between two checkpoints, like 30s, 10m.")
    ] = "30s",
    options: SubmissionOptions,
    manager: ManagerOptions = ManagerOptions(),
    where: TenantOptions = TenantOptions(),
    as_json: Json = False,
) -> None:
    """Train a job on idle GPUs as tasks of a padding load, with this machine as
    its manager.

    One task is the gradient of one virtual node. The result has the same bits
    as that of an ordinary run with as many virtual nodes, however often tasks
    are preempted. Ctrl-C writes a checkpoint; the same command continues from
    it.

    \b
    Examples:
      eflow train train.py --checkpoint run-1
      eflow train train.py:Digits --checkpoint run-2 --iterations 900 --batch 256
    """
    training = manager.of_training(checkpoint_every)
    job, code = load(options.target)
    ready = with_code(options.apply(job).set_job_class("padding"), code)
    bar = _progress_bar(disable=as_json)
    shown = bar.add_task("", total=ready.spec.max_iterations)

    def show(progress: TrainingProgress) -> None:
        bar.update(shown, completed=progress.iteration, description=_in_words(progress))

    with bar:
        trained = train_submission(ready, checkpoint, options=training, on_progress=show, **asdict(where))
    if as_json:
        print_json(trained)
    else:
        say_line(
            f"trained {counted(trained.iteration, 'iteration')}; the state is in {checkpoint}; {_in_words(trained)}",
            "green",
        )


def _progress_bar(*, disable: bool) -> Progress:
    """A progress bar, shown on a terminal only, while the command runs."""
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
    terminal = console()
    return Progress(*columns, console=terminal, transient=True, disable=disable or not terminal.is_terminal)


def _in_words(progress: TrainingProgress) -> str:
    return " ".join(f"{metric} {value:.4g}" for metric, value in progress.metrics.items())
