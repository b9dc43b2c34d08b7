"""`python -m elasticflow.services.executor.worker FD [MODULE ...]`: the fork server, on the inherited socket FD."""

import socket
import sys

from elasticflow.services.executor.worker.fork_server_parent import keep
from elasticflow.shared.library_imports import without_gc


def _serve(keeper: int) -> None:
    with without_gc():  # only in this process: the keeper stays small
        from elasticflow.services.executor.worker.fork_server import ForkServer

    ForkServer(socket.socket(fileno=int(sys.argv[1])), keeper=keeper, preload=sys.argv[2:]).serve()


if __name__ == "__main__":
    if len(sys.argv) < 2 or not sys.argv[1].isdigit():
        sys.exit("only an executor starts this process: run `python -m elasticflow.services.executor` instead")
    keep(_serve, control=int(sys.argv[1]))
