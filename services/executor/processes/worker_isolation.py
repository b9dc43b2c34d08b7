"""What separates the workers of this node from it and from each other (docs/adr/0058)."""

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from elasticflow.services.executor.settings import ExecutorSettings
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.worker_protocol.forking import Isolation
from elasticflow.shared.runtime.process.isolation.cgroups import WorkerCgroups, open_cgroups
from elasticflow.shared.runtime.process.isolation.machine_check import namespaces_problem, python_folders
from elasticflow.shared.runtime.process.isolation.system_calls import (
    NO_FILTER,
    filter_problem,
    set_readable_by_others,
)
from elasticflow.shared.runtime.process.settings import Settings

_ALLOWED_NAMES = (
    *("PATH", "LANG", "TZ", "USER", "LOGNAME", "SHELL", "TERM", "HOSTNAME"),
    *("LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
_ALLOWED_STARTS = (
    *("LC_", "PYTHON", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "TRITON_"),
    *("OMP_", "OPENBLAS_", "MKL_", "KMP_", "NUMBA_", "VIRTUAL_ENV", "PIP_", "UV_"),
)
_OF_ALL_GPUS = (
    *("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps", "nvidia-caps-imex-channels"),
    "infiniband",
)
_SERVICE_STARTS = ("NATS_", "EF_")  # addresses and secrets of the bus


class WorkerIsolation(NamedTuple):
    """isolation: of each worker; None: it has the rights of its executor. missing: what this machine cannot enforce.

    cgroups: where each worker has a control group of its own.
    gpu_files: the file in /dev of each slot's GPU, if each process sees those of its own slots only; else empty.
    """

    isolation: Isolation | None = None
    missing: tuple[str, ...] = ()
    cgroups: WorkerCgroups | None = None
    gpu_files: tuple[str, ...] = ()

    @property
    def separates_gpus(self) -> bool:
        """As in `NodeJoined`."""
        return bool(self.gpu_files)

    def of_process(self, slots: Sequence[int]) -> Isolation | None:
        """The isolation of a process that uses these slots. A job on one slot needs no memory that others see."""
        if self.isolation is None or not self.gpu_files:
            return self.isolation
        files = tuple(dict.fromkeys(self.gpu_files[slot] for slot in slots))
        devices = (*_OF_ALL_GPUS, *files) if files else ()
        return replace(self.isolation, devices=devices, shares_memory=len(slots) > 1)

    @property
    def kind(self) -> Literal["none", "limits", "namespaces"]:
        """The kind of isolation, as in `NodeJoined`."""
        if self.isolation is None:
            return "none"
        return "namespaces" if self.isolation.namespaces else "limits"

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """What workers inherit of their executor's environment."""
        if self.isolation is None:
            return {name: value for name, value in inherited.items() if not name.startswith(_SERVICE_STARTS)}
        allowed = {
            name: value
            for name, value in inherited.items()
            if name in _ALLOWED_NAMES or name.startswith(_ALLOWED_STARTS)
        }
        return {**allowed, "HOME": "/tmp"}


def prepare_isolation(process: Settings, settings: ExecutorSettings) -> WorkerIsolation:
    """Try what this machine can enforce, and protect this process. Blocking. Raises BadSettings if it is required."""
    if settings.isolation == "none":
        return WorkerIsolation(missing=("EF_ISOLATION=none: jobs have the rights of their executor",))
    problem = namespaces_problem()
    if problem and settings.isolation == "required":
        raise BadSettings(
            (
                f"EF_ISOLATION=required: workers cannot have namespaces of their own: {problem}; "
                "permit user namespaces and mounts (docs/how-to/secure-a-pool.md), or set auto",
            )
        )
    if sys.platform == "linux":
        set_readable_by_others(False)
    shares_memory = settings.device == "cuda" and settings.num_gpus > 1
    access = process.nats_access
    secrets = (access.credentials, access.key, settings.secrets_key, settings.workers_secret_file)
    isolation = Isolation(
        namespaces=not problem,
        shares_memory=shares_memory,
        readable=(*python_folders(), *settings.data_folders),
        hidden=(str(process.data_dir), *(str(file) for file in secrets if file is not None)),
        memory_bytes=settings.job_memory_bytes,
        devices=_devices(settings),
    )
    cgroups, no_limits = None, ""
    place = hashlib.sha256(str(process.data_dir.resolve()).encode()).hexdigest()[:12]
    try:
        cgroups = open_cgroups(settings.cgroup, f"{settings.node_id}-{place}", memory_bytes=settings.job_memory_bytes)
        no_limits = f"control groups without limits: {cgroups.unlimited}" if cgroups.unlimited else ""
    except OSError as error:
        no_limits = f"no control groups: {error}"
    gpu_files = settings.gpu_devices if shares_memory and not problem and _can_separate(settings) else ()
    missing = _missing(problem, no_limits, settings, shares_memory=shares_memory, separates_gpus=bool(gpu_files))
    return WorkerIsolation(isolation, tuple(missing), cgroups, gpu_files)


def _can_separate(settings: ExecutorSettings) -> bool:
    """Only a name that does not count GPUs means the same one to a process that sees some of them."""
    return settings.shown_gpus == "job" and all((*settings.gpu_devices, *settings.gpu_uuids))


def _devices(settings: ExecutorSettings) -> tuple[str, ...]:
    """The devices of this executor's GPUs only: the machine's others belong to other executors, or to none."""
    if settings.device == "cpu":
        return ()
    own = tuple(dict.fromkeys(settings.gpu_devices))
    if "" in own:  # without NVML
        own = tuple(name for name in sorted(os.listdir("/dev")) if re.fullmatch(r"nvidia\d+", name))
    return (*_OF_ALL_GPUS, *own)


def _missing(
    problem: str, no_limits: str, settings: ExecutorSettings, *, shares_memory: bool, separates_gpus: bool
) -> Iterator[str]:
    """problem: why there are no namespaces; no_limits: why control groups have none; "" if they do."""
    if problem:
        yield f"jobs see the processes and files of their executor's user: {problem}"
    elif separates_gpus:
        yield "jobs with several GPUs of this node share /dev/shm, with which NCCL connects them"
    elif shares_memory:
        unknown = settings.shown_gpus == "job"
        advice = "NVML does not name them all" if unknown else "EF_SHOWN_GPUS=job shows each job its own"
        yield f"jobs share /dev/shm, and see the devices of all GPUs of this node: {advice}"
    if not problem and "" in settings.gpu_devices:
        yield "jobs see the devices of all GPUs of this machine: NVML does not name those of this node"
    if no_filter := filter_problem():
        yield f"{NO_FILTER}: {no_filter}"
    if problem and no_limits:
        yield f"no limit for the processes of a job: {no_limits}"
    kills = "the kernel kills workers first when it is short"
    if not settings.job_memory_bytes:
        yield f"no limit for the main memory of a job: {kills}; set EF_JOB_MEMORY_BYTES"
    elif no_limits and settings.device == "cuda":
        yield f"no limit for the main memory of a job on GPUs: {kills}; {no_limits}"
    elif no_limits:
        yield f"a limit of main memory for each process of a job only, not for all together: {kills}; {no_limits}"


NOT_ISOLATED = WorkerIsolation()
