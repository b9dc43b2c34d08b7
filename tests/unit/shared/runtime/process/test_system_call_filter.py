"""What users' code cannot ask of the kernel, and that all else works. In a process of its own: a filter stays."""

import subprocess
import sys
from pathlib import Path

import pytest

from elasticflow.services.executor.processes import worker_isolation
from elasticflow.shared.runtime.process.isolation import system_calls
from elasticflow.shared.runtime.process.isolation.system_calls import filter_problem, filter_system_calls

PROGRAM = """
import ctypes, errno, multiprocessing, os, subprocess, sys, threading
from elasticflow.shared.runtime.process.isolation import system_calls as f
from elasticflow.shared.runtime.process.isolation.system_calls import forbid_new_rights

def speculation():
    return [line for line in open("/proc/self/status") if line.startswith("Speculation")]

def asked(name, *arguments):
    number = f._library.seccomp_syscall_resolve_name(name.encode())
    result = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    return "permitted" if result >= 0 else errno.errorcode[ctypes.get_errno()]

before = speculation()
forbid_new_rights()
f.filter_system_calls()
assert speculation() == before, "arithmetic is as fast as before"
calls = {
    "io_uring_setup": (1, 0), "keyctl": (0, 0, 0), "bpf": (0, 0, 0), "perf_event_open": (0, 0, -1, -1, 0),
    "userfaultfd": (0,), "ptrace": (0, 0, 0, 0), "unshare": (0x10000000,), "mount": (0, 0, 0, 0, 0),
    "clone3": (0, 0), "clone": (0x10000000 | 17, 0, 0, 0, 0),
}
print({name: asked(name, *arguments) for name, arguments in calls.items()})
thread = threading.Thread(target=print, args=("a thread",))
thread.start()
thread.join()
process = multiprocessing.get_context("fork").Process(target=print, args=("a fork",))
process.start()
process.join()
print(subprocess.run(["sh", "-c", "echo a program"], capture_output=True, text=True, check=True).stdout.strip())
"""


def test_ways_into_the_kernel_are_closed_and_training_needs_none_of_them() -> None:
    if problem := filter_problem():
        pytest.skip(problem)
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    asked, *works = run.stdout.splitlines()
    refused = dict.fromkeys(("keyctl", "bpf", "perf_event_open", "userfaultfd", "ptrace", "unshare", "mount"), "EPERM")
    assert eval(asked) == refused | {"clone": "EPERM", "clone3": "ENOSYS", "io_uring_setup": "ENOSYS"}
    assert sorted(works) == ["a fork", "a program", "a thread"], run.stderr


def test_a_machine_without_the_library_has_no_filter_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_calls, "_library", None)
    filter_system_calls()
    assert not Path("/proc/self/status").exists() or "Seccomp:\t0" in Path("/proc/self/status").read_text()
    assert filter_problem() == "libseccomp.so.2 is not installed"
    assert worker_isolation.filter_problem is filter_problem
