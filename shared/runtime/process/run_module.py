"""Runs a module of this copy of `elasticflow` in a Python process of its own.

The process imports `elasticflow` from where its parent imported it. Neither the working directory nor the folder that
holds `elasticflow` is on its `sys.path`, so no module of a user's project or of a checkout hides another
(decision record 0034). Nothing of ours is imported at the top: the process executes this file as a script.
"""

import importlib
import os
import runpy
import sys


def module_command(module: str, *arguments: str, python: str = sys.executable) -> tuple[str, ...]:
    """The command line that runs this module, as `python -m` does. python: an interpreter that has what it imports."""
    return (python, "-P", __file__, module, *arguments)


def _import_elasticflow() -> None:
    """The package alone: its modules are found in it afterwards."""
    folder_of_package = os.path.abspath(__file__)
    for _ in range(4):  # elasticflow/shared/runtime/process/run_module.py
        folder_of_package = os.path.dirname(folder_of_package)
    import_root = os.path.dirname(folder_of_package)
    sys.path.insert(0, import_root)
    importlib.import_module("elasticflow")
    sys.path.remove(import_root)


if __name__ == "__main__":
    _import_elasticflow()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
