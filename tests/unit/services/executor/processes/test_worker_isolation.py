"""What an executor asks of its machine, and what its workers inherit."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.services.executor.processes import worker_isolation
from elasticflow.services.executor.processes.worker_isolation import NOT_ISOLATED, WorkerIsolation, prepare_isolation
from elasticflow.services.executor.settings import ExecutorSettings
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.worker_protocol.forking import Isolation
from elasticflow.shared.runtime.process.isolation.cgroups import WorkerCgroups
from elasticflow.shared.runtime.process.local_hardware import LocalGpu
from elasticflow.shared.runtime.process.settings import Settings

INHERITED = {
    "PATH": "/bin",
    "NATS_URL": "nats://token@host",
    "EF_NATS_CREDS": "/k",
    "AWS_SECRET": "s",
    "NCCL_DEBUG": "1",
}


def no_groups(folder: Path | None, node: str, *, memory_bytes: int) -> WorkerCgroups:
    raise OSError("no cgroup v2 is mounted")


def prepared(
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    problem: str = "",
    open_cgroups: Callable[..., object] = no_groups,
    no_filter: str = "",
    gpus: tuple[LocalGpu, ...] = (),
    **more: str,
) -> WorkerIsolation:
    monkeypatch.setattr(worker_isolation, "open_cgroups", open_cgroups)
    monkeypatch.setattr(worker_isolation, "namespaces_problem", lambda: problem)
    monkeypatch.setattr(worker_isolation, "set_readable_by_others", lambda _: None)
    monkeypatch.setattr(worker_isolation, "filter_problem", lambda: no_filter)
    device = "cuda" if gpus else "cpu"
    environment = {"EF_DEVICE": device, "EF_ISOLATION": mode, "EF_DATA_DIR": "/data/dir", "EF_DATA_FOLDERS": "/sets"}
    environment |= more
    settings = Settings.from_environment(environment)
    own = ExecutorSettings.from_environment(settings.nats_url, environment, discovered_gpus=lambda _: gpus)
    return prepare_isolation(settings, own)


def test_a_machine_that_cannot_is_refused_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSettings, match=r"EF_ISOLATION=required: workers cannot have .*: clone: not permitted"):
        prepared(monkeypatch, "required", "clone: not permitted")
    found = prepared(monkeypatch, "auto", "clone: not permitted")
    assert found.kind == "limits"
    assert "clone: not permitted" in found.missing[0]
    assert prepared(monkeypatch, "none", "clone: not permitted").kind == "none"


def test_workers_see_the_pools_data_and_not_the_folder_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    found = prepared(monkeypatch, "required")
    assert found.kind == "namespaces"
    assert found.isolation is not None
    assert "/sets" in found.isolation.readable
    assert "/data/dir" in found.isolation.hidden


@pytest.mark.parametrize(
    ("limit", "missing"), [("0", "set EF_JOB_MEMORY_BYTES"), ("1000000000", "for each process of a job only")]
)
def test_what_limits_the_memory_of_a_job_is_named(monkeypatch: pytest.MonkeyPatch, limit: str, missing: str) -> None:
    found = prepared(monkeypatch, "required", EF_JOB_MEMORY_BYTES=limit)
    assert [missing in each for each in found.missing] == [True]
    assert found.isolation is not None
    assert found.isolation.memory_bytes == int(limit), "of its files in memory"
    opened: list[tuple[Path | None, int]] = []

    def open_cgroups(folder: Path | None, node: str, *, memory_bytes: int) -> WorkerCgroups:
        opened.append((folder, memory_bytes))
        return WorkerCgroups(Path("/groups/workers-n"), memory_bytes=memory_bytes)

    more = {"EF_JOB_MEMORY_BYTES": limit, "EF_CGROUP": "/groups"}
    grouped = prepared(monkeypatch, "auto", "clone: not permitted", open_cgroups, **more)
    assert opened == [(Path("/groups"), int(limit))]
    assert len(grouped.missing) == (1 if int(limit) else 2), "of all processes of a job together"
    assert not any("control groups" in each for each in grouped.missing)

    def without_limits(folder: Path | None, node: str, *, memory_bytes: int) -> WorkerCgroups:
        return WorkerCgroups(Path("/groups/workers-n"), memory_bytes=memory_bytes, unlimited="no controllers")

    named = prepared(monkeypatch, "auto", "clone: not permitted", without_limits, **more)
    assert named.cgroups is not None
    assert "no limit for the processes of a job: control groups without limits: no controllers" in named.missing
    without = prepared(monkeypatch, "auto", "clone: not permitted", **more).missing
    assert "no limit for the processes of a job: no control groups: no cgroup v2 is mounted" in without


def test_a_machine_without_a_filter_of_system_calls_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("system calls" in each for each in prepared(monkeypatch, "required").missing)
    found = prepared(monkeypatch, "required", no_filter="libseccomp.so.2 is not installed")
    assert "no filter of the system calls of jobs: libseccomp.so.2 is not installed" in found.missing


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ((), ()),
        (("nvidia2",), ("nvidia2",)),
        (("nvidia2", "nvidia5"), ("nvidia2", "nvidia5")),
        (("nvidia2", ""), ("nvidia0", "nvidia2", "nvidia11")),
    ],
)
def test_a_worker_sees_the_devices_of_its_executors_gpus_only(
    files: tuple[str, ...], shown: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = ["null", "nvidia0", "nvidia11", "nvidia2", "nvidia-uvm", "nvidiactl", "kvm"]
    monkeypatch.setattr(worker_isolation.os, "listdir", lambda _: machine)
    settings: Any = SimpleNamespace(device="cuda" if files else "cpu", gpu_devices=files)
    found = worker_isolation._devices(settings)
    assert {name for name in found if name.removeprefix("nvidia").isdigit()} == set(shown)
    assert ("nvidiactl" in found) == bool(files)


GPUS = tuple(LocalGpu(str(index), "H100", 80, f"GPU-{index}", index, f"nvidia{7 - index}") for index in range(3))


@pytest.mark.parametrize(
    ("slots", "shown", "shares_memory"),
    [
        ((), set[str](), False),
        ((1,), {"nvidia6"}, False),
        ((0, 2), {"nvidia7", "nvidia5"}, True),
    ],
    ids=["an installer", "one GPU", "two GPUs"],
)
def test_a_process_sees_the_gpus_of_its_own_slots_only(
    slots: tuple[int, ...], shown: set[str], shares_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = prepared(monkeypatch, "required", gpus=GPUS)
    assert found.separates_gpus
    isolation = found.of_process(slots)
    assert isolation is not None
    assert {name for name in isolation.devices if name.removeprefix("nvidia").isdigit()} == shown
    assert ("nvidiactl" in isolation.devices) == bool(shown)
    assert isolation.shares_memory == shares_memory
    assert "jobs with several GPUs of this node share /dev/shm, with which NCCL connects them" in found.missing


@pytest.mark.parametrize(
    ("mode", "problem", "shown", "gpus"),
    [
        ("auto", "", "", GPUS),
        ("required", "", "executor", GPUS),
        ("auto", "clone: not permitted", "job", GPUS),
        ("required", "", "", (*GPUS, GPUS[0]._replace(device_file=""))),
        ("required", "", "", (*GPUS, GPUS[0]._replace(uuid=""))),
    ],
    ids=["by default", "on demand", "no namespaces", "unknown device", "unknown name"],
)
def test_else_it_sees_those_of_its_executor(
    mode: str, problem: str, shown: str, gpus: tuple[LocalGpu, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = prepared(monkeypatch, mode, problem, gpus=gpus, **({"EF_SHOWN_GPUS": shown} if shown else {}))
    assert not found.separates_gpus
    assert found.of_process((1,)) == found.isolation
    if not problem:
        assert any("see the devices of all GPUs of this node" in each for each in found.missing)


def test_an_executor_with_one_gpu_has_nothing_to_separate(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not prepared(monkeypatch, "required", gpus=GPUS[:1]).separates_gpus


@pytest.mark.parametrize("shown", ["job", "executor"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_node_whose_gpus_are_not_known_by_their_devices_says_what_its_jobs_see(
    number: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They see those of all GPUs of the machine, also of other executors there."""
    unknown = tuple(gpu._replace(device_file="") for gpu in GPUS[:number])
    found = prepared(monkeypatch, "required", gpus=unknown, EF_SHOWN_GPUS=shown)
    named = [each for each in found.missing if "see the devices of all GPUs of this machine" in each]
    assert len(named) == 1
    assert "NVML" in named[0]


def test_workers_inherit_named_variables_only() -> None:
    isolated = WorkerIsolation(Isolation(namespaces=True)).environment(INHERITED)
    assert isolated == {"PATH": "/bin", "NCCL_DEBUG": "1", "HOME": "/tmp"}
    assert NOT_ISOLATED.environment(INHERITED).keys() == {"PATH", "AWS_SECRET", "NCCL_DEBUG"}


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
@pytest.mark.skipif(not Path("/usr/bin/setpriv").exists(), reason="no setpriv")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two users")
def test_a_process_of_the_same_user_cannot_read_the_environment() -> None:
    """Also without namespaces."""
    code = (
        "import os; from elasticflow.shared.runtime.process.isolation import system_calls;"
        "os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534); "
        "system_calls.set_readable_by_others({readable}); parent = os.getpid();"
        "child = os.fork();"
        "child or os._exit(os.system(f'cat /proc/{{parent}}/environ > /dev/null 2>&1') != 0);"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    results = [
        subprocess.run([sys.executable, "-c", code.format(readable=each)], check=False) for each in (True, False)
    ]
    assert [result.returncode for result in results] == [0, 1]
