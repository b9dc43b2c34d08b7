"""`python -m elasticflow.services.executor.worker FD [MODULE ...]`: the fork server, on the inherited socket FD.

With --check it only imports what it would load; with --entered it goes on as a worker in the environment of a job.
"""

import platform
import socket
import sys

from elasticflow.services.executor.worker.fork_server_parent import keep
from elasticflow.shared.library_imports import without_gc


def _serve(keeper: int) -> None:
    with without_gc():  # only in this process: the keeper stays small
        from elasticflow.services.executor.worker.fork_server import ForkServer

    ForkServer(socket.socket(fileno=int(sys.argv[1])), keeper=keeper, preload=sys.argv[2:]).serve()


def _check() -> None:
    import numpy
    import torch

    from elasticflow.services.executor.worker import fork_server

    print(
        f"{fork_server.ENTRY}: Python {platform.python_version()}, torch {torch.__version__}, numpy {numpy.__version__}"
    )


def _go_on(channel: int, rest: int) -> None:
    with without_gc():
        from elasticflow.services.executor.worker.fork_server import run_entered

    run_entered(channel, rest)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--check"]:
            _check()
        case ["--entered", channel, rest]:
            _go_on(int(channel), int(rest))
        case [control, *_] if control.isdigit():
            keep(_serve, control=int(control))
        case _:
            sys.exit("only an executor starts this process: run `python -m elasticflow.services.executor` instead")
