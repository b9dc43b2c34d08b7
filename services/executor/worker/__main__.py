"""`python -m elasticflow.services.executor.worker FD [MODULE ...]`: the fork server, on the inherited socket FD."""

import socket
import sys

from elasticflow.shared.library_imports import without_gc

with without_gc():
    from elasticflow.services.executor.worker.process.fork_server import ForkServer

if __name__ == "__main__":
    if len(sys.argv) < 2 or not sys.argv[1].isdigit():
        sys.exit("only an executor starts this process: run `python -m elasticflow.services.executor` instead")
    ForkServer(socket.socket(fileno=int(sys.argv[1])), preload=sys.argv[2:]).serve()
