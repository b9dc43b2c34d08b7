"""A process of this machine that attacks the ports of workers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

HOSTILE = """
import os, socket, sys
ports = [int(port) for port in sys.argv[2:]]
print("begun", flush=True)
while os.getppid() == int(sys.argv[1]):
    for port in ports:
        for number in range(8):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
                    connection.sendall(number.to_bytes(8, "little") + os.urandom(256))
            except OSError:
                pass
"""


@contextmanager
def hostile_process(*ports: int) -> Iterator[None]:
    """It connects to these ports again and again, as a peer of gloo would, and sends rubbish."""
    command = [sys.executable, "-c", HOSTILE, str(os.getpid()), *map(str, ports)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        yield
        process.kill()


def listening_ports(pid: int) -> list[int]:
    """The TCP ports on which this process listens."""
    connections = psutil.Process(pid).net_connections("tcp")
    return [each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN]
