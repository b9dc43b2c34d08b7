"""What is the user's code: modules that are none of Python, of an installed library or of this project, their
functions, and their objects.
"""

import importlib
import linecache
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, ClassVar

from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.shared.errors import Stop
from elasticflow.shared.messages.job_environment import DATA_VARIABLE, without_secrets
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment


def is_users_module(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and _is_users(name, getattr(module, "__file__", None) or "")


@lru_cache(maxsize=4096)
def _is_users(name: str, file: str) -> bool:
    root = name.partition(".")[0]
    return root not in sys.stdlib_module_names and root != "elasticflow" and "site-packages" not in file


def is_users_frame(frame: FrameType) -> bool:
    package = frame.f_globals.get("__package__") or ""  # of `python -m elasticflow...`, whose module is "__main__" too
    return package.partition(".")[0] != "elasticflow" and is_users_module(frame.f_globals.get("__name__", ""))


def modules_in(error: BaseException) -> list[str]:
    """The names of the modules that the error came through, the innermost one last."""
    return [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]


def items_of(value: Any, most: int) -> Iterable[tuple[str, Any]]:
    """What a mapping, a list, a tuple or an object of a user's class holds, by the end of its name. most: items."""
    match value:
        case Mapping():
            return ((f"[{key!r}]", item) for key, item in list(islice(value.items(), most)))
        case list() | tuple():
            return ((f"[{index}]", item) for index, item in enumerate(value[:most]))
        case _ if is_users_module(type(value).__module__):
            return [(f".{name}", item) for name, item in getattr(value, "__dict__", {}).items()]
        case _:
            return []


# --- job environment -----------------------------------------------------------------------------------
# The environment of a job in its worker: variables, secrets, data, and the folders that it imports from.

_secret_values: list[str] = []  # of this process, which serves one job


def enter_environment(assignment: Assignment) -> Assignment:
    """Set the job's variables, and import from its packages before those of the node. Returns the assignment without
    its secrets. Called before users' code is imported. Raises TrainingFailed if data is not there.
    """
    os.environ.update(assignment.spec.environment)
    os.environ.update(assignment.secrets)
    for name, path in assignment.data_paths.items():
        if not os.access(path, os.R_OK):
            raise TrainingFailed(
                f"its data {name}: {path} is not there on this node, or its jobs may not read it; mount it on all "
                "nodes, and name its folder in their EF_DATA_FOLDERS if they isolate jobs"
            )
        os.environ[f"{DATA_VARIABLE}{name}"] = path
    _secret_values.extend(assignment.secrets.values())
    if assignment.packages_path:
        sys.path.insert(0, assignment.packages_path)
    return replace(assignment, secrets={}) if assignment.secrets else assignment


def enter_code(assignment: Assignment) -> Assignment:
    """Import from the job's code before all else. Returns the assignment with the folder of the training function's
    module as code_path."""
    folder = assignment.spec.import_folder
    if not folder:
        return assignment
    sys.path.insert(0, assignment.code_path)  # of a workdir: what lies at its top
    return replace(assignment, code_path=str(Path(assignment.code_path) / folder))


def without_own_secrets(text: str) -> str:
    """The text of an error, which the ledger keeps, without values of the job's secrets."""
    return without_secrets(text, _secret_values)


def keep_source_lines(error: BaseException, folder: Path) -> None:
    """Let the error's traceback show its lines of code from this folder even once the folder is deleted."""
    traceback.TracebackException.from_exception(error)  # reads them, also those of its causes
    for file, lines in list(linecache.cache.items()):
        if len(lines) == 4 and Path(file).is_relative_to(folder):
            size, _, text, name = lines
            linecache.cache[file] = (
                size,
                None,
                text,
                name,
            )  # without a time of change it is not compared with the file


# --- users module --------------------------------------------------------------------------------------
# Imports a module of the user's code by name: of a training function, or of a task function.

_WHERE_MODULES_ARE = (
    "; put it beside your file (modules that its imports name are sent with it), send its folder with --workdir, or "
    "let the nodes install it with --requirement, or name it in the file of --environment"
)


@dataclass(eq=False)
class NotImportable(Stop):
    """Its cause is what the import raised."""

    module: str
    reason: str

    MESSAGE: ClassVar[str] = "cannot import {module}: {reason}"


def import_users_module(name: str, code_path: str) -> ModuleType:
    """code_path: folder (or zip) with the module; "": the working directory. Raises NotImportable."""
    sys.path.insert(0, code_path or os.getcwd())
    try:
        return importlib.import_module(name)
    except BaseException as error:  # a module may raise anything while it is imported
        what_to_do = _WHERE_MODULES_ARE if isinstance(error, ModuleNotFoundError) else ""
        raise NotImportable(name, f"{type(error).__name__}: {error}{what_to_do}") from error
