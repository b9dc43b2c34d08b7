"""A service whose clock is wrong by the number of seconds that a file holds, at each moment.

Arguments: the service's module, the file. Without the file the clock is right.
"""

import runpy
import sys
from pathlib import Path

from elasticflow.shared.runtime.process import clock


class SkewedTime:
    """Stands in place of the module `time`, for the only module that asks it."""

    def __init__(self, offset: Path) -> None:
        self._offset, self._right = offset, clock.time

    def time(self) -> float:
        try:
            return self._right.time() + float(self._offset.read_text())
        except FileNotFoundError:
            return self._right.time()


if __name__ == "__main__":
    module, file = sys.argv[1:]
    clock.time = SkewedTime(Path(file))  # pyright: ignore[reportAttributeAccessIssue]
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
