"""The banner of HiGHS, which the first solver of a process prints to standard output and no option prevents."""

import contextlib
import os
from collections.abc import Callable


def drop_banner(make_solver: Callable[[], object]) -> None:
    """Make a solver while standard output leads nowhere, that of C code too. Errors of later calls are still seen."""
    try:
        stdout = os.dup(1)
    except OSError:  # it is closed
        return
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            os.dup2(nowhere.fileno(), 1)
            make_solver()
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
