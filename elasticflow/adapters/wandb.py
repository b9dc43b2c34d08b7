"""Jobs in Weights & Biases: the extra `wandb`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from elasticflow.adapters.tracking import Point, Tracker, description_of, parameters_of
from elasticflow.shared.extras import require_extra
from elasticflow.shared.training_interface import RunningJob

_LOCK = "wandb.lock"  # in the folder of the job


class WeightsAndBiases(Tracker):
    """A sink: `on_step = WeightsAndBiases("digits")`. Workers find the key in WANDB_API_KEY, a secret of the job.

    project, entity: "": those of the variables WANDB_PROJECT and WANDB_ENTITY in the workers. The job has one run,
    whichever workers lead, with the id of the job's identity; a sweep is a group.
    """

    def __init__(self, project: str = "", *, entity: str = "") -> None:
        super().__init__("wandb", partial(_WandbRun, project, entity))


class _WandbRun:
    """One process after another writes to a run: the next one waits until the one before has closed it, or is dead."""

    def __init__(self, project: str, entity: str, job: RunningJob) -> None:
        import fcntl  # here: who submits a job may have Windows

        wandb: Any = import_module("wandb")

        self._lock = os.open(job.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            words = description_of(job)
            self._run = wandb.init(
                project=project or None,
                entity=entity or None,
                id=job.identity or None,
                dir=str(job.folder) if job.identity else None,  # not among the files that the job has made
                name=job.job_id,
                group=job.spec.sweep or None,
                config={**parameters_of(job.spec), **{f"elasticflow.{name}": each for name, each in words.items()}},
                resume="allow" if job.identity else None,
                reinit="create_new",  # the job's own code may have a run, too
                settings=wandb.Settings(console="off"),
            )
        except BaseException:
            self._unlock()
            raise

    def write(self, points: Sequence[Point]) -> None:
        """The library queues them by itself. It ignores an iteration that the run has already."""
        for point in points:
            self._run.log({**point.metrics}, step=point.iteration)

    def close(self, *, has_finished: bool) -> None:
        """has_finished: else the run is marked as one that goes on."""
        try:
            if not has_finished:
                self._run.mark_preempting()
            self._run.finish(exit_code=0 if has_finished else 1)
        finally:
            self._unlock()

    def _unlock(self) -> None:
        """Closing it is not enough: processes that read samples were forked from this one, and have it, too."""
        import fcntl

        with suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)


class WandbRuns:
    """The runs of jobs, for who knows more of a job than its workers do."""

    def __init__(self, project: str = "", entity: str = "") -> None:
        require_extra("wandb", "eflow track wandb")
        wandb: Any = import_module("wandb")

        self._api = wandb.Api()
        self._project = project or os.environ.get("WANDB_PROJECT", "") or "uncategorized"
        self._entity = entity or os.environ.get("WANDB_ENTITY", "") or self._api.default_entity

    def write(self, identity: str, words: Mapping[str, str], ending: str) -> bool:
        """Returns whether the job has a run. The service itself says how it ended."""
        del ending
        try:
            run: Any = self._api.run(f"{self._entity}/{self._project}/{identity}")
        except ValueError as error:  # of its library, for a run that is not there
            if "not find run" in str(error).lower():
                return False
            raise
        run.summary.update({f"elasticflow.{name}": value for name, value in words.items()})
        return True
