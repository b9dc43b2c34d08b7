"""`python -m elasticflow.services.executor.worker.training_tasks FD`: a training manager on the inherited socket FD."""

import signal
import socket
import sys

from elasticflow.services.executor.worker.loop.run_worker import run_assignment
from elasticflow.services.executor.worker.training_tasks.manager import run_manager

if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        sys.exit("only `eflow train` starts this process")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the client asks it to stop
    run_assignment(socket.socket(fileno=int(sys.argv[1])), b"", run_manager)
