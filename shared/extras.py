"""The installation of `elasticflow`: which extra installs which library, and errors for missing or mixed parts.

At the package index the names `elasticflow` and `eflow` belong to others, so no text may advise to install them
(docs/adr/0094).
"""

import importlib.metadata
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from elasticflow.shared.errors import Stop

DISTRIBUTION = "elasticflow-training"  # that pip knows; users import `elasticflow`

_EXTRAS = {
    "server": ("highspy", "numba", "numpy", "prometheus_client", "psutil", "pynvml"),
    "train": ("torch",),
    "fsspec": ("fsspec",),
    "plot": ("matplotlib",),
    "examples": ("sklearn",),
    "adapters": ("transformers", "accelerate", "pytorch_lightning"),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "safetensors": ("torch", "safetensors"),
    "web": ("starlette", "uvicorn"),
}


@dataclass(eq=False)
class MissingExtra(Stop):
    """what: a command or process."""

    what: str
    extra: str
    library: str

    MESSAGE: ClassVar[str] = (
        "{what} needs the extra `{extra}` ({library} is not installed): pip install --editable '.[{extra}]' in the "
        "checkout, or the wheel with it"
    )


@dataclass(eq=False)
class MixedInstallation(Stop):
    """The files of one version may have overwritten those of another."""

    folder: str
    versions: str

    MESSAGE: ClassVar[str] = (
        "several packages with a module elasticflow are installed in {folder}: {versions}; repeat `pip uninstall "
        "elasticflow-training elasticflow` until none is left, then install one"
    )


def require_one_version() -> None:
    """Raises MixedInstallation, also for the other project of the package index that has a module `elasticflow`.

    A version in another folder of `sys.path` is no problem: all processes run this one.
    """
    folder = Path(__file__).absolute().parents[2]
    ours = importlib.metadata.distributions(name=DISTRIBUTION, path=[str(folder)])
    others = importlib.metadata.distributions(name="elasticflow", path=[str(folder)])
    found = [*ours, *(each for each in others if "elasticflow/__init__.py" in (each.read_text("RECORD") or ""))]
    if len(found) > 1:
        raise MixedInstallation(str(folder), ", ".join(sorted(f"{each.name} {each.version}" for each in found)))


def torch_problem(installed: str | None = None) -> str | None:
    """Why a version of torch does not fit this version of elasticflow, and what to do; None if it fits or is absent.

    installed: by default the one of this installation.
    """
    try:
        torch = installed or importlib.metadata.version("torch")
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    wanted = next(line.partition(";")[0].strip() for line in requirements if line.startswith("torch"))
    bounds = dict(re.findall(r"(>=|<)(\d+\.\d+)", wanted))
    if _minor_version(bounds[">="]) <= _minor_version(torch) < _minor_version(bounds["<"]):
        return None
    return f"torch {torch} is installed, but {wanted} is needed: pip install 'torch{wanted.removeprefix('torch')}'"


def _minor_version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(".")[:2])


def require_extra(extra: str, what: str) -> None:
    """Raises MissingExtra. Imports no library."""
    for library in _EXTRAS[extra]:
        if find_spec(library) is None:
            raise MissingExtra(what, extra, library)


def missing_extra(error: ModuleNotFoundError, what: str) -> MissingExtra | None:
    """The extra that installs what was not found; None for any other module."""
    library = (error.name or "").partition(".")[0]
    found = (extra for extra, libraries in _EXTRAS.items() if library in libraries)
    return next((MissingExtra(what, extra, library) for extra in found), None)
