"""Functions of padding loads, well-behaved and otherwise."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch


def double(x):
    return 2 * x


def total(values):
    return float(np.sum(values))


def where(_):
    """The process, and the GPUs that it sees."""
    return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]


def cpu_niceness(_):
    return os.getpriority(os.PRIO_PROCESS, 0)


def misbehave(how):
    """Does what the input says; returns other inputs unchanged."""
    return _DEEDS[how]() if isinstance(how, str) and how in _DEEDS else how


def wait_for(path):
    """Announces itself, then returns when the file exists."""
    Path(f"{path}.waiting").touch()
    while not Path(path).exists():
        time.sleep(0.002)
    return "waited"


def burn(cpu_s):
    """Uses so much CPU time, about; returns how much."""
    began_s = time.process_time()
    while time.process_time() - began_s < cpu_s:
        pass
    return time.process_time() - began_s


def fill_memory(num_bytes):
    return len(bytearray(num_bytes))


def make_result(num_bytes):
    return bytes(num_bytes)


def print_lines(num_lines):
    for number in range(num_lines):
        print(f"line {number} of a task that prints")
    return num_lines


not_a_function = 42


class _NotPicklable:
    def __reduce__(self):
        raise TypeError("this cannot be pickled")


def _raise():
    raise ValueError("no such sample: \udcff")


def _ignore_sigterm_with_a_child():
    """Starts a child in the process group and says which, then runs on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    print(f"child={child.pid}", flush=True)
    while True:
        time.sleep(1.0)


def _print_without_end():
    while True:
        os.write(1, b"x" * 65_535 + b"\n")


def _channels():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                yield int(name)
        except OSError:
            continue


def _write_garbage():
    for fd in list(_channels()):
        os.write(fd, b"\xff" * 64)
    time.sleep(600.0)


def _forge_an_outcome():
    """A readable message that is not due."""
    from elasticflow.shared.messages.worker_protocol.frames import encode_frame
    from elasticflow.shared.messages.worker_protocol.task_running import TaskDone

    for fd in list(_channels()):
        os.write(fd, encode_frame(TaskDone(bundle_id=999, index=999, result=b"", task_s=0.0)))
    time.sleep(600.0)


def _close_the_channel():
    """Shut down only its own direction, so that the runner does not notice."""
    for fd in list(_channels()):
        socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_WR)
    time.sleep(600.0)


def _fork_and_return():
    """Both processes return from the task, but only one is the runner."""
    return "parent" if os.fork() else "child"


def _break_the_gpu():
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def _lose_the_gpu():
    raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")


_DEEDS = {
    "raise": _raise,
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(4),
    "segfault": lambda: ctypes.string_at(0),
    "kill itself": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "endless": lambda: time.sleep(600.0),
    "not picklable": _NotPicklable,
    "child": _ignore_sigterm_with_a_child,
    "print without end": _print_without_end,
    "break the GPU": _break_the_gpu,
    "lose the GPU": _lose_the_gpu,
    "garbage": _write_garbage,
    "forged": _forge_an_outcome,
    "close": _close_the_channel,
    "fork and return": _fork_and_return,
}
