"""Imports a module of the user's code by name: of a training function, or of a task function."""

import importlib
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

from elasticflow.shared.errors import Stop

_WHERE_MODULES_ARE = (
    "; put it beside your file (modules that its imports name are sent with it), send its folder with --workdir, or "
    "let the nodes install it with --requirement"
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
