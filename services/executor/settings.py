"""Settings of the executor beside those of every service, and what it detects of its machine."""

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from elasticflow.services.executor.end_notices.sources import CLOUDS, FILE, METADATA_ADDRESS
from elasticflow.shared.messages.job_environment import CREDENTIALS
from elasticflow.shared.messages.limits import (
    GPU_TYPE_PATTERN,
    MAX_GPUS,
    MAX_URI_LENGTH,
    RACK_PATTERN,
    URI_PATTERN,
)
from elasticflow.shared.runtime.process.files import file_named
from elasticflow.shared.runtime.process.local_hardware import (
    CPU_SLOTS_PART_OF_CORES,
    LocalGpu,
    cpu_slot_type,
    memory_bytes,
    num_cores,
    part_of_type,
    slot_memory_bytes,
    visible_gpus,
)
from elasticflow.shared.runtime.process.nats_access import reachable_host
from elasticflow.shared.runtime.process.secret_sealing import workers_secret_file
from elasticflow.shared.runtime.process.settings import Reader


def num_sockets(system: Path = Path("/sys/devices/system")) -> int:
    """CPU packages or NUMA nodes of this machine, whichever are fewer; 1 if unknown.

    A virtual machine may report each core as a package, and a package may hold several NUMA nodes.
    """
    packages = {path.read_text() for path in system.glob("cpu/cpu[0-9]*/topology/physical_package_id")}
    numa_nodes = [path for path in system.glob("node/node[0-9]*/cpulist") if path.read_text().strip()]
    return max(1, min(len(packages), len(numa_nodes)))


def network_interfaces() -> list[str]:
    """The network interfaces of this machine, in the kernel's order."""
    return [name for _, name in socket.if_nameindex()]


def _token(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)[:64] or "node"


def _unknown_gpu(given: Mapping[str, str], gpus: Sequence[LocalGpu], installed: Sequence[LocalGpu]) -> str | None:
    """What is wrong if CUDA_VISIBLE_DEVICES names a GPU that this machine does not have: CUDA would hide the rest."""
    named = given.get("CUDA_VISIBLE_DEVICES", "")
    unused = [name.strip() for name in named.split(",")][len(gpus) :]
    if not installed or not unused or unused[0] in ("", "-1", "NoDevFiles"):  # the last two: no GPU, on purpose
        return None
    names = ", ".join(gpu.name for gpu in installed)
    return f"CUDA_VISIBLE_DEVICES={named}: there is no GPU {unused[0]} here; name some of {names}: see `nvidia-smi -L`"


def _two_executors(node_id: str, gpus: Sequence[LocalGpu]) -> str:
    """Why GPUs of several types are not one node, and how to start an executor for each type."""
    by_type: dict[str, list[str]] = {}
    for gpu in gpus:
        by_type.setdefault(gpu.gpu_type or "unknown", []).append(gpu.name)
    each = [
        f"CUDA_VISIBLE_DEVICES={','.join(names)} EF_NODE_ID={_token(f'{node_id}-{gpu_type}')}"
        for gpu_type, names in by_type.items()
    ]
    return (
        f"CUDA_VISIBLE_DEVICES: a node has GPUs of one type, and these are {', '.join(by_type)}; "
        f"start one executor with {', another with '.join(each)}"
    )


def _store(name: str, given: Mapping[str, str], read: Reader) -> str:
    uri = given.get(name, "")
    if uri and (len(uri) > MAX_URI_LENGTH or not re.fullmatch(URI_PATTERN, uri)):
        read.reject(f"{name}: it is no URI of a folder; write it like s3://bucket/folder")
    if CREDENTIALS.search(uri):
        read.reject(f"{name}: it has a password, and all users read it; set variables of its library instead")
    return uri


def _until_s(given: Mapping[str, str], read: Reader) -> float | None:
    """When the node ends; inside an allocation of Slurm, when that ends, if nobody asks Slurm again and again."""
    name = "EF_NODE_UNTIL" if given.get("EF_NODE_UNTIL") else "SLURM_JOB_END_TIME"
    if name == "SLURM_JOB_END_TIME" and given.get("EF_UNTIL_NOTICE") == "slurm":
        return None
    return read.number(name, 0.0, low=1.0, high=1e11) if given.get(name) else None


def _until_notice(given: Mapping[str, str], read: Reader) -> str:
    """Who announces the end; a relative path of a file becomes an absolute one."""
    named = given.get("EF_UNTIL_NOTICE", "")
    path = named.removeprefix(FILE)
    if path != named and path:
        return f"{FILE}{Path(path).absolute()}"
    if named and named not in (*CLOUDS, "slurm"):
        read.reject(f"EF_UNTIL_NOTICE={named!r}: choose one of {', '.join(CLOUDS)}, slurm and {FILE}PATH")
    return named


def _notice_address(given: Mapping[str, str], read: Reader) -> str:
    address = given.get("EF_NOTICE_ADDRESS", "")
    if address and not re.fullmatch(r"http://[^/?#@\s]+", address):
        read.reject(f"EF_NOTICE_ADDRESS={address!r}: write it like {METADATA_ADDRESS}")
    return address


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """Each setting is read from the variable named beside it. The defaults fit a machine with or without GPUs."""

    node_id: str  # EF_NODE_ID: unique in the pool; default: the host's name
    device: Literal["cpu", "cuda"]  # EF_DEVICE: auto, cpu or cuda
    num_gpus: int  # EF_SLOTS: GPUs, or equal parts of GPUs if there are more slots; CPU slots without GPUs
    gpu_names: tuple[str, ...]  # CUDA_VISIBLE_DEVICES: the GPU of each slot; empty without GPUs
    gpu_devices: tuple[str, ...]  # CUDA_VISIBLE_DEVICES: the file of each slot's GPU in /dev; "": unknown
    gpu_uuids: tuple[str, ...]  # CUDA_VISIBLE_DEVICES: of each slot's GPU; "": unknown
    cpu_share: float  # EF_CPU_SHARE: cores that one CPU slot may use (docs/adr/0004)
    gpu_type: str  # EF_GPU_TYPE: of all its GPUs; default: NVML's product name; of CPU slots their share: cpu-0.25
    # EF_GPU_MEMORY_BYTES: of each GPU; default: as NVML reports it; of CPU slots, of this machine; 0: unknown
    gpu_memory_bytes: int
    sockets: int  # EF_SOCKETS: CPU sockets, over which the GPUs are spread in order and evenly
    rack: str  # EF_RACK: nodes of one rack are closer to each other; may be a path: hall-1/row-2/rack-3; "": unknown
    # EF_NODE_UNTIL: when this node ends, in seconds since 1970; default: SLURM_JOB_END_TIME; None: no end is known
    until_s: float | None
    # EF_UNTIL_NOTICE: what announces the end of this machine: aws, gcp, azure, slurm or file:PATH; "": nothing
    until_notice: str
    # EF_NOTICE_ADDRESS: of the cloud's metadata service; default: http://169.254.169.254
    notice_address: str
    advertise_host: str  # EF_ADVERTISE_HOST: where workers of other nodes reach rank 0
    # EF_DATA_INTERFACE: network interface of tensors between workers; "": that of EF_ADVERTISE_HOST
    data_interface: str
    stop_grace_s: float  # EF_STOP_GRACE_S: from the request to stop at a step boundary to the kill
    # EF_JOB_MEMORY_BYTES: that each process of a job on a CPU slot may allocate beyond the preloaded libraries, and
    # with control groups each worker, on GPUs too, with all its processes; also bounds the files of an isolated worker
    # in /tmp and /dev/shm together; 0: no limit; default: of a CPU slot its share of the machine, at least 1 GiB; of a
    # GPU no limit
    job_memory_bytes: int
    # EF_CGROUP: folder of cgroup v2 in which this user may make control groups of workers; default: its own group
    cgroup: Path | None
    warm_workers: int  # EF_WARM_WORKERS: GPUs with a warm worker, its CUDA context made (docs/adr/0020)
    # EF_PRELOAD: modules, separated by commas, that are imported once for all workers
    preload: tuple[str, ...]
    # EF_ISOLATION: of workers: none, auto (what this machine can enforce) or required; default: auto if this node has a
    # key of its own, else none, since everyone with the token may do everything (docs/adr/0058)
    isolation: Literal["none", "auto", "required"]
    # EF_SHOWN_GPUS: to an isolated worker: job, those of its job on this node, and a change of these stops the job at a
    # step boundary (docs/adr/0115); or executor, those of its executor. Default: job if EF_ISOLATION=required
    shown_gpus: Literal["job", "executor"]
    secrets_key: Path | None  # EF_SECRETS_KEY: file with the pool's private key for secrets of jobs; None: opens none
    # EF_WORKERS_SECRET_FILE: the same secret on all nodes, with which workers of a job know each other (docs/adr/0070);
    # default: workers.secret beside EF_NATS_CREDS or in EF_DATA_DIR, if it is there; None: they trust each connection
    workers_secret_file: Path | None
    data_folders: tuple[str, ...]  # EF_DATA_FOLDERS: separated by colons; isolated workers may read them
    # EF_ARTIFACT_STORE: URI of a folder for models and files of jobs, s3://bucket/folder; "": the pool's object store
    artifact_store: str
    # EF_CHECKPOINT_STORE: URI of a folder for copies of checkpoints, so that nodes need no common EF_DATA_DIR; "": none
    checkpoint_store: str

    @classmethod
    def from_environment(
        cls,
        nats_url: str,
        environment: Mapping[str, str] | None = None,
        *,
        discovered_gpus: Callable[[Mapping[str, str]], Sequence[LocalGpu]] = visible_gpus,
        discovered_sockets: Callable[[], int] = num_sockets,
        discovered_memory: Callable[[], int] = memory_bytes,
        discovered_interfaces: Callable[[], Sequence[str]] = network_interfaces,
    ) -> "ExecutorSettings":
        """Raises BadSettings, which names each wrong variable. discovered_gpus: lists the usable GPUs."""
        given = os.environ if environment is None else environment
        read = Reader(given)
        gpus = () if given.get("EF_DEVICE") == "cpu" else discovered_gpus(given)
        found = len(gpus)
        if given.get("EF_DEVICE") != "cpu" and (unknown := _unknown_gpu(given, gpus, discovered_gpus({}))):
            read.reject(unknown)
        read.choice("EF_DEVICE", "auto", ("auto", "cpu", "cuda") if found else ("auto", "cpu"))
        cores = num_cores()
        num_gpus = read.integer("EF_SLOTS", found or cores, low=1, high=MAX_GPUS)
        if 0 < found < num_gpus and num_gpus % found:
            read.reject(
                f"EF_SLOTS={num_gpus}: must be at most {found}, the number of GPUs here, or a multiple of it: equal "
                "parts of each GPU"
            )
        parts = max(num_gpus // found, 1) if found else 1
        # of a part, the sockets are unknown
        all_gpus = num_gpus == found > 0 and "CUDA_VISIBLE_DEVICES" not in given
        sockets = discovered_sockets() if all_gpus else 1
        fair_share = 1.0 if found else min(1.0, CPU_SLOTS_PART_OF_CORES * cores / num_gpus)
        node_id = read.token("EF_NODE_ID", _token(socket.gethostname()))
        cpu_share = read.number("EF_CPU_SHARE", fair_share, low=0.001, high=1e4)
        used = [gpu for gpu in gpus for _ in range(parts)][:num_gpus]
        if not given.get("EF_GPU_TYPE") and len({gpu.gpu_type for gpu in used}) > 1:
            read.reject(_two_executors(node_id, used))
        gpu_type = part_of_type(used[0].gpu_type, parts) if used else cpu_slot_type(cpu_share)
        memory = min(gpu.memory_bytes for gpu in used) // parts if used else discovered_memory() // num_gpus
        slot_memory = 0 if used else slot_memory_bytes(discovered_memory(), num_gpus)
        data_interface = given.get("EF_DATA_INTERFACE", "")
        if data_interface and data_interface not in (interfaces := discovered_interfaces()):
            read.reject(
                f"EF_DATA_INTERFACE={data_interface}: this machine has no such network interface; name one of "
                f"{', '.join(interfaces)}"
            )
        data_folders = tuple(folder for folder in given.get("EF_DATA_FOLDERS", "").split(":") if folder)
        if relative := [folder for folder in data_folders if not folder.startswith("/")]:
            read.reject(f"EF_DATA_FOLDERS: {relative[0]} is no absolute path")
        default_isolation = "auto" if given.get("EF_NATS_CREDS") else "none"
        isolation = read.choice("EF_ISOLATION", default_isolation, ("none", "auto", "required"))
        shown_gpus = read.choice("EF_SHOWN_GPUS", "job" if isolation == "required" else "executor", ("job", "executor"))
        settings = cls(
            node_id=node_id,
            device="cuda" if found else "cpu",
            num_gpus=num_gpus,
            gpu_names=tuple(gpu.name for gpu in used),
            gpu_devices=tuple(gpu.device_file for gpu in used),
            gpu_uuids=tuple(gpu.uuid for gpu in used),
            cpu_share=cpu_share,
            gpu_type=read.token("EF_GPU_TYPE", gpu_type, GPU_TYPE_PATTERN),
            gpu_memory_bytes=read.integer("EF_GPU_MEMORY_BYTES", memory, low=0, high=2**53),
            sockets=read.integer("EF_SOCKETS", 1 if num_gpus % sockets else sockets, low=1, high=64),
            rack=read.token("EF_RACK", "", RACK_PATTERN),
            until_s=_until_s(given, read),
            until_notice=_until_notice(given, read),
            notice_address=_notice_address(given, read),
            advertise_host=given.get("EF_ADVERTISE_HOST", "") or reachable_host(nats_url),
            data_interface=data_interface,
            stop_grace_s=read.number("EF_STOP_GRACE_S", 10.0, low=0.0, high=3600.0),
            job_memory_bytes=read.integer("EF_JOB_MEMORY_BYTES", slot_memory, low=0, high=2**53),
            cgroup=file_named(given, "EF_CGROUP"),
            warm_workers=read.integer("EF_WARM_WORKERS", found and num_gpus, low=0, high=num_gpus),
            preload=tuple(name for name in given.get("EF_PRELOAD", "").replace(" ", "").split(",") if name),
            isolation=cast(Literal["none", "auto", "required"], isolation),
            shown_gpus=cast(Literal["job", "executor"], shown_gpus),
            secrets_key=file_named(given, "EF_SECRETS_KEY"),
            workers_secret_file=workers_secret_file(given),
            data_folders=data_folders,
            artifact_store=_store("EF_ARTIFACT_STORE", given, read),
            checkpoint_store=_store("EF_CHECKPOINT_STORE", given, read),
        )
        read.check()
        return settings
