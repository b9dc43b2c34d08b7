"""Environments of jobs' own without a network: an index in a folder, with what each worker needs."""

from pathlib import Path

from packaging.requirements import Requirement

from elasticflow.services.executor.worker.preparation.make_environment import WORKER_NEEDS
from elasticflow.shared.messages.job_environment import OwnEnvironment
from tests.support.wheels import from_folder, make_wheel, needed_by, repack

OLD = "0.5"  # of a package that each node has in a newer version


def make_index(folder: Path) -> Path:
    """A folder of wheels: those that a worker needs, those that torch needs, and an old `packaging`."""
    folder.mkdir(parents=True)
    needs = needed_by("torch", *(Requirement(line).name for line in WORKER_NEEDS))
    repack(folder, *sorted(needs - {"torch"}))
    make_wheel(folder, "packaging", OLD)
    make_wheel(folder, "ef_tiny", "1.5")
    return folder


def own_environment(index: Path, *requirements: str, python: str = "") -> OwnEnvironment:
    return OwnEnvironment(python=python, requirements=from_folder(index, *requirements))
