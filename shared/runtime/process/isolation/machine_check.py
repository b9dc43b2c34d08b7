"""What this machine cannot enforce of the isolation of workers. Importable on all systems: clients ask, too."""

import os
import subprocess
import sys
from pathlib import Path

from elasticflow.shared.runtime.process.run_module import module_command

_TIMEOUT_S = 30.0
_TRIAL = "elasticflow.shared.runtime.process.isolation.isolated_process"
_IMPORT_ROOT = Path(__file__).parents[5]  # of elasticflow


def python_folders() -> tuple[str, ...]:
    """All that a worker imports from: the interpreter, its packages, this package; not the working directory."""
    imported = [path for path in sys.path if path and Path(path) != Path.cwd()]
    named = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    found = (sys.prefix, sys.base_prefix, str(_IMPORT_ROOT), *imported, *named)
    return tuple(dict.fromkeys(each for path in found for each in (os.path.realpath(path), path)))


def namespaces_problem() -> str:
    """Why workers cannot have namespaces of their own here; "" if they can. Blocking, for about half a second."""
    if sys.platform != "linux":
        return "only Linux has them"
    try:
        tried = subprocess.run(module_command(_TRIAL), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if tried.returncode == 0 else (tried.stderr.strip().splitlines() or [f"exit {tried.returncode}"])[-1]
