"""`python -m services.executor.worker FD [MODULE ...]`: the fork server, on the socket that it inherits as FD."""

import socket
import sys

from shared.loading import loading

with loading():
    from services.executor.worker.fork_server import ForkServer

if __name__ == "__main__":
    if len(sys.argv) < 2 or not sys.argv[1].isdigit():
        sys.exit("the executor starts this process; there is nothing to run by hand")
    ForkServer(socket.socket(fileno=int(sys.argv[1])), preload=sys.argv[2:]).serve()
