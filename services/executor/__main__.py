"""`python -m elasticflow.services.executor`: the executor of one node."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from elasticflow.shared.library_imports import without_gc

with without_gc():
    from elasticflow.services.executor.service import serve
    from elasticflow.services.executor.settings import ExecutorSettings
    from elasticflow.shared.extras import require_extra
    from elasticflow.shared.runtime.process.settings import Settings
    from elasticflow.shared.runtime.service.run_service import Process, run_service


def _configured(settings: Settings) -> Callable[[Process], Coroutine[Any, Any, None]]:
    """Raises BadSettings, MissingExtra."""
    require_extra("train", "an executor")
    return partial(serve, settings=ExecutorSettings.from_environment(settings.nats_url))


if __name__ == "__main__":
    run_service("executor", _configured)
