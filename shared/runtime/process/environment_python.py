"""The Python of a job's own environment: where it lies in its folder, and which variables its processes have."""

import os
from collections.abc import Mapping
from pathlib import Path

_OF_ANOTHER_PYTHON = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE")


def virtual_environment_of(folder: Path) -> Path:
    """The virtual environment. Beside it is the interpreter, if that was downloaded for it."""
    return folder / "venv"


def interpreter_of(folder: Path) -> str:
    return str(virtual_environment_of(folder) / "bin" / "python")


def variables_in(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process of this environment: what names packages of the node is left out."""
    venv = virtual_environment_of(folder)
    kept = {name: value for name, value in inherited.items() if name not in _OF_ANOTHER_PYTHON}
    path = os.pathsep.join(filter(None, (str(venv / "bin"), kept.get("PATH", ""))))
    return kept | {"VIRTUAL_ENV": str(venv), "PATH": path, "PYTHONNOUSERSITE": "1"}
