"""The parent of the fork server: if that is killed, the keeper ends all that its workers have started.

Three processes watch each other: executor, keeper and fork server. Whichever of them is killed, another one ends the
workers and their descendants, in whatever session and with whatever environment these are (docs/adr/0101). The keeper
imports no libraries: it is small, and does nothing.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from elasticflow.shared.runtime.process.process_termination import adopt_orphans, end_adopted

_END_TIMEOUT_S = 10.0


def keep(serve: Callable[[int], None], *, control: int) -> NoReturn:
    """Run `serve` in a child, which gets a descriptor: its end of file says that the keeper is gone.

    control: the socket of the server; its executor must see an end of file once the server is gone. SIGTERM ends the
    server as if it was killed.
    """
    adopt_orphans()
    alive, held = os.pipe()
    server = os.fork()
    if server == 0:
        os.close(held)
        serve(alive)
        sys.exit()
    os.close(control)
    os.close(alive)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(server, signal.SIGKILL))
    while True:
        pid, status = os.wait()
        if pid == server:
            break
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its process id may be that of another process
    end_adopted(timeout_s=_END_TIMEOUT_S)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 1)
