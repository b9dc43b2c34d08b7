"""`python -m services.executor`"""

from functools import partial

from shared.loading import loading

with loading():
    from services.executor.service import serve
    from services.executor.settings import ExecutorSettings
    from shared.runtime.service import run_service

if __name__ == "__main__":
    run_service(
        "executor",
        lambda settings: partial(serve, settings=ExecutorSettings.from_environment(settings.nats_url)),
    )
