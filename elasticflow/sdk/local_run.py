"""A job in this process, without a pool: to try it, and to step through it with a debugger."""

import inspect
import os
import pdb
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from elasticflow.errors import InvalidJob, TrainingRefused
from elasticflow.sdk.job import ElasticJob
from elasticflow.sdk.job_fields import absent_data
from elasticflow.sdk.script import Script
from elasticflow.sdk.submission import quotable
from elasticflow.shared.extras import require_extra
from elasticflow.shared.messages.event_summary import counted
from elasticflow.shared.messages.job_environment import local_path
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.worker_protocol.from_worker import ARTIFACT_FOLDER, MODEL_FOLDER, iteration_of_model
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan

OnProgress = Callable[[int, Mapping[str, float]], None]  # iterations done, and metrics
_REDRAWN_EVERY_S = 0.1
_PDB = ("", "pdb.set_trace")  # values of PYTHONBREAKPOINT for it


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """condition: that ended it. metrics: the last ones. model: the trained one, as `init_model` made it. folder: with
    `model.pt` and the files of the artifact folder; None: nothing was written. virtual_nodes: parts of a batch, which
    decide the bits; 0 in the fast mode."""

    iteration: int
    condition: Literal["max_iterations", "metric"]
    metrics: Mapping[str, float]
    model: Any
    folder: Path | None
    virtual_nodes: int


def run_locally(
    job: ElasticJob,
    *,
    out: str | Path | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    virtual_nodes: int = 0,
    on_progress: OnProgress | None = None,
    show_progress: bool = True,
) -> LocalRun:
    """Train the job in this process, without a pool, one step after another. The same bits as on a pool's workers.

        if __name__ == "__main__":
            elasticflow.run_locally(Line())

    A deadline and a range of GPUs have no effect. out: folder for `model.pt` and the job's files, as `eflow fetch`
    writes them. device: auto takes a GPU if torch finds one. virtual_nodes: so many as the job has in a pool, for
    the same bits; 0: up to 8. Those of the class come first. show_progress: a bar, on a terminal; a breakpoint ends it.
    Ctrl-C ends the training after the present step, a second one at once. Raises InvalidJob, MissingExtra,
    TrainingRefused, KeyboardInterrupt, and what the job's code raises.
    """
    require_extra("train", "a local run")
    spec = _local_spec(job)
    if virtual_nodes and job.virtual_nodes and virtual_nodes != job.virtual_nodes:
        raise InvalidJob(f"virtual_nodes: {type(job).__name__} has {job.virtual_nodes}; leave {virtual_nodes} out")
    from elasticflow.services.executor.worker.interface import TrainingFailed
    from elasticflow.services.executor.worker.loop.local_training import device_here, train_here

    with tempfile.TemporaryDirectory(prefix="eflow-") as home:
        assignment = Assignment(
            job_id="local",
            plan=GenerationPlan(generation=1, world_size=1, num_virtual_nodes=virtual_nodes),
            rank=0,
            spec=spec,
            checkpoint_dir=home,
            data_paths={name: str(local_path(uri)) for name, uri in spec.data.items()},
            device=device_here() if device == "auto" else device,
        )
        with _interrupts() as interrupted, _progress(spec.max_iterations, show=show_progress) as advance:

            def on_step(iteration: int, metrics: Mapping[str, float]) -> None:
                advance(iteration, metrics)
                if on_progress is not None:
                    on_progress(iteration, metrics)

            try:
                trained = train_here(type(job), assignment, on_step=on_step, stops=interrupted.is_set, warn=_warn)
            except TrainingFailed as error:
                raise TrainingRefused(str(error)) from error.__cause__
        folder = _kept(Path(home), trained.iteration, out)
    return LocalRun(
        iteration=trained.iteration,
        condition=trained.condition,
        metrics=trained.metrics,
        model=trained.model,
        folder=folder,
        virtual_nodes=trained.virtual_nodes,
    )


def _local_spec(job: ElasticJob) -> JobSpec:
    """The specification without a deadline. Raises InvalidJob for what needs a pool."""
    if isinstance(job, Script):
        raise InvalidJob(
            "a script runs by itself, outside of a job: start it as you did before, by python or torchrun; elastic() "
            "then changes nothing"
        )
    spec = quotable(job).spec()
    remote = [f"{name} is at {uri}" for name, uri in spec.data.items() if local_path(uri) is None]
    if remote:
        raise InvalidJob(
            f"data: {', '.join(remote)}, which only nodes fetch: name a copy on this machine, --data NAME=PATH"
        )
    if gone := absent_data(spec.data):
        raise InvalidJob(f"data: {', '.join(gone)}: name what is on this machine, --data NAME=PATH")
    if spec.gpus_per_replica > 1:
        _warn(
            f"this process holds all of the model, so sums of floats are rounded in another way than with "
            f"{spec.gpus_per_replica} GPUs for each replica"
        )
    return replace(spec, job_class=JobClass.BEST_EFFORT, deadline_s=None, deadline_in_s=None, gpus_per_replica=1)


def _kept(home: Path, iteration: int, out: str | Path | None) -> Path | None:
    """The folder with the model and the job's files; None, and a warning about files, if none is wanted."""
    files = [file for file in (home / ARTIFACT_FOLDER).rglob("*") if file.is_file()]
    if out is None:
        if files:
            _warn(
                f"the job's artifact folder, with {counted(len(files), 'file')}, is dropped: "
                "name a folder for them (out, --out)"
            )
        return None
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (model,) = (file for file in (home / MODEL_FOLDER).iterdir() if iteration_of_model(file.name) == iteration)
    shutil.move(model, folder / "model.pt")
    if files:
        shutil.copytree(home / ARTIFACT_FOLDER, folder / ARTIFACT_FOLDER, dirs_exist_ok=True)
    return folder


def _warn(warning: str) -> None:
    print(f"warning: {warning}", file=sys.stderr)


@contextmanager
def _interrupts() -> Generator[threading.Event]:
    """An event that Ctrl-C sets; a second Ctrl-C raises KeyboardInterrupt. Only the main thread gets signals."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def on_signal(*_: Any) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        print("ends after this step; Ctrl-C again ends it at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(total: int, *, show: bool) -> Generator[OnProgress]:
    """A bar on stderr, if that is a terminal and no debugger runs. It ends at a breakpoint."""
    terminal = Console(stderr=True)
    if not (show and terminal.is_terminal and sys.gettrace() is None):
        yield lambda iteration, metrics: None
        return
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=terminal, transient=True, auto_refresh=False) as bar:
        shown, drawn_at_s, enter_debugger = bar.add_task("", total=total), 0.0, sys.breakpointhook

        def at_breakpoint(*arguments: Any, **named: Any) -> Any:
            sys.breakpointhook = enter_debugger
            bar.stop()
            if enter_debugger is sys.__breakpointhook__ and os.environ.get("PYTHONBREAKPOINT", "") in _PDB:
                caller = inspect.currentframe()
                pdb.Pdb().set_trace(
                    caller.f_back if caller else None
                )  # the hook of Python would stop here, not in the job's code
                return None
            return enter_debugger(*arguments, **named)

        def advance(iteration: int, metrics: Mapping[str, float]) -> None:
            nonlocal drawn_at_s
            if bar.live.is_started and time.monotonic() - drawn_at_s > _REDRAWN_EVERY_S:
                drawn_at_s = time.monotonic()
                words = " ".join(f"{name} {value:.4g}" for name, value in metrics.items())
                bar.update(shown, completed=iteration, description=words, refresh=True)

        sys.breakpointhook = at_breakpoint
        try:
            yield advance
        finally:
            sys.breakpointhook = enter_debugger
