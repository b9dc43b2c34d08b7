"""`python -m elasticflow.services.monitor`"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from elasticflow.shared.library_imports import without_gc

with without_gc():
    from elasticflow.services.monitor.service import MonitorSettings, serve
    from elasticflow.shared.runtime.process.settings import Settings
    from elasticflow.shared.runtime.service.run_service import Process, run_service


def _configured(settings: Settings) -> Callable[[Process], Coroutine[Any, Any, None]]:
    """Raises BadSettings."""
    return partial(serve, settings=MonitorSettings.from_environment())


if __name__ == "__main__":
    run_service("monitor", _configured)
