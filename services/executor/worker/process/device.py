"""The one device of a worker: its share of the cores, or one GPU of the node; its memory, its errors, its timing."""

import ctypes
import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from elasticflow.services.executor.worker.process.compiled_models import compile_each_shape_alone
from elasticflow.shared.errors import Retry
from elasticflow.shared.runtime.process.logs import log

# --- gpu problems --------------------------------------------------------------------------------------
# What an operator can do about a GPU that does not start, or that other processes use: one line for the job's log.

SLOTS_OF_GPU = "EF_SLOTS_OF_GPU"  # in the environment of a worker: the executor's slots that have its GPU
_FULL = ("out of memory",)
_ABSENT = ("No CUDA GPUs are available", "invalid device ordinal", "no CUDA-capable device")
_GIB = 2**30


def advice_for(reason: str, environment: Mapping[str, str]) -> str:
    """reason: CUDA's message at the start. environment: of this worker, which sees its own GPU only."""
    name = environment.get("CUDA_VISIBLE_DEVICES", "")
    if any(text in reason for text in _FULL):
        return f"{_users_of(name)}: end them, or leave the GPU out of the executor's CUDA_VISIBLE_DEVICES"
    if any(text in reason for text in _ABSENT):
        return f"CUDA_VISIBLE_DEVICES is {name!r} here: let that of its executor name GPUs that `nvidia-smi -L` lists"
    return "install a build of torch that fits the node's driver, or start its executor with EF_DEVICE=cpu"


def warn_if_occupied(device: torch.device, environment: Mapping[str, str]) -> None:
    """Warn if less than half of the GPU's memory is free before the job uses it, unless slots share it: they are its
    users."""
    if int(environment.get(SLOTS_OF_GPU, "1")) > 1:
        return
    free, total = torch.cuda.mem_get_info(device)
    if free < total / 2:
        log.warning(
            "gpu_memory_is_taken",
            free_gib=round(free / _GIB, 1),
            total_gib=round(total / _GIB, 1),
            processes=_users_of(environment.get("CUDA_VISIBLE_DEVICES", "")),
            advice="end them, or leave the GPU out of the executor's CUDA_VISIBLE_DEVICES",
        )


def driver_version() -> str:
    """The driver version of the node's GPUs; "" without a driver."""
    with suppress(Exception):  # of NVML: no library, no driver
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return ""


def _users_of(name: str) -> str:
    """The processes that hold its memory, as NVML lists them. name: as in CUDA_VISIBLE_DEVICES."""
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        by_index = name.isdecimal()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else pynvml.nvmlDeviceGetHandleByUUID(name)
        users = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        held = [f"{each.pid} ({(each.usedGpuMemory or 0) / _GIB:.1f} GiB)" for each in users]
        return f"processes {', '.join(held)} use it" if held else "processes that NVML does not list use it"
    return "other processes use it"


# --- numa binding --------------------------------------------------------------------------------------
# Runs a worker on the cores of its GPU's NUMA node: copies from other nodes' memory are slower, and disturb others.


def bind_to_numa_node(pci_address: str, system: Path = Path("/sys")) -> None:
    """Bind this thread and those that it starts to the GPU's NUMA node; readers inherit it. Cores that the process may
    not use stay unused.

    pci_address: of the GPU, as "0000:3b:00.0". No effect on machines with one NUMA node or an unknown one.
    """
    nodes = list(system.glob("devices/system/node/node[0-9]*"))
    gpu = system / "bus/pci/devices" / pci_address
    try:
        node, cores = int((gpu / "numa_node").read_text()), _cores((gpu / "local_cpulist").read_text())
    except (OSError, ValueError):  # the kernel does not show it, for example in a container
        return
    usable = cores & os.sched_getaffinity(0)
    if len(nodes) < 2 or node < 0:
        return
    if not usable:
        log.warning(
            "gpu_is_on_another_numa_node",
            numa_node=node,
            cores=sorted(cores),
            advice="let the executor use some of these cores, or leave the GPU out of its CUDA_VISIBLE_DEVICES",
        )
        return
    os.sched_setaffinity(0, usable)
    log.info("bound_to_numa_node", numa_node=node, num_cores=len(usable))


def _cores(listed: str) -> set[int]:
    """The cores of the kernel's list, for example "0-15,32-47"."""
    cores: set[int] = set()
    for part in filter(None, listed.strip().split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


# --- device --------------------------------------------------------------------------------------------

_ONE_HEAP = (-8, 1)  # M_ARENA_MAX, from glibc's malloc.h
_KEPT_HEAP = (
    (-4, 0),  # M_MMAP_MAX: no memory outside the heap
    (-1, 2**31 - 1),  # M_TRIM_THRESHOLD: free bytes at the heap's end before it shrinks
)


_NO_MEMORY = (  # in messages of plain RuntimeErrors that torch's allocators and libraries raise
    "DefaultCPUAllocator",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


_DEVICE_LOST = (  # in messages of the CUDA runtime
    "no CUDA-capable device is detected",
    "CUDA-capable device(s) is/are busy or unavailable",
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "hardware stack error",
    "unknown error",
)


@dataclass(eq=False)
class DeviceLost(Retry):
    """Not the job's fault. reason: CUDA's message."""

    reason: str

    MESSAGE: ClassVar[str] = "the GPU was lost: {reason}; look for Xid in the node's kernel log"


@dataclass(eq=False)
class DeviceMemoryExceeded(Retry):
    """No state has changed; smaller micro-batches may fit. micro_batch_size: samples."""

    micro_batch_size: int
    reason: str

    MESSAGE: ClassVar[str] = "a micro-batch of {micro_batch_size} samples exceeds the memory: {reason}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the node ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


def release_memory(device: torch.device) -> None:
    """Return unused memory to the device, as large blocks."""
    gc.collect()  # an error and the frames of its traceback refer to each other
    if device.type == "cuda":
        torch.cuda.empty_cache()


@dataclass(eq=False)
class DeviceUnusable(Retry):
    """Not the job's fault: the executor may restart it, here or elsewhere. gpu_index: on this node. advice: to the
    operator."""

    gpu_index: int
    reason: str
    advice: str
    torch_version: str = torch.__version__

    MESSAGE: ClassVar[str] = (
        "torch {torch_version} cannot use GPU {gpu_index}, which the driver lists: {reason}; {advice}"
    )


def is_device_lost(error: BaseException) -> bool:
    """Whether the device itself has failed, independently of the operation."""
    return isinstance(error, torch.AcceleratorError) and any(text in str(error) for text in _DEVICE_LOST)


def visible_devices(gpu_indices: Sequence[int], inherited: Mapping[str, str]) -> str:
    """CUDA_VISIBLE_DEVICES for these GPUs, in CUDA's naming, also if the executor itself sees only some GPUs."""
    names = inherited.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return ",".join(names[i] if i < len(names) and names[i] else str(i) for i in gpu_indices)


def claim(kind: str, gpu_index: int) -> torch.device:
    """The device of this process from now on; it and its children see no other GPU. Raises DeviceUnusable.

    Each process that sees another GPU may make a context there, of half a gigabyte. A warm worker claims its GPU twice.
    """
    if kind == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        torch.set_num_threads(1)  # a slot is at most one core
        _keep_freed_memory()
        _compile_without_gpu()
        return torch.device("cpu")
    if not torch.cuda.is_initialized():
        name, of_node = visible_devices([gpu_index], os.environ), os.environ.get("CUDA_VISIBLE_DEVICES", "")
        os.environ[SLOTS_OF_GPU] = str(max(of_node.split(",").count(name), 1))
        os.environ["CUDA_VISIBLE_DEVICES"] = name
    try:
        torch.cuda.init()
        torch.cuda.set_device(0)
    except (
        AssertionError,
        RuntimeError,
    ) as error:  # torch without CUDA; no driver, no such GPU, a broken one, or a full one
        reason = str(error).partition("\n")[0]
        raise DeviceUnusable(gpu_index, reason, advice_for(reason, os.environ)) from error
    device = torch.device("cuda", 0)
    bind_to_numa_node(pci_address(device))
    return device


def _compile_without_gpu() -> None:
    """Let threads compile with torch's build for CUDA. Up to 2.11 its compiler registers a stand-in for the absent GPU,
    which lives as long as the thread that compiles first: here the main thread, which does not end before the process.

    Not in the fork server: it asks the driver for GPUs.
    """
    if torch.backends.cuda.is_built() and hasattr(torch._C, "_ensureCUDADeviceGuardSet"):
        torch._C._ensureCUDADeviceGuardSet()  # pyright: ignore[reportPrivateUsage]


def pci_address(device: torch.device) -> str:
    """The PCI address of the GPU, of the whole one if this process has a part of it; "" if torch does not tell it."""
    gpu = torch.cuda.get_device_properties(device)
    if not all(hasattr(gpu, name) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")):
        return ""
    return f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"


def warm_up(kind: str, gpu_index: int) -> None:
    """Create the CUDA context and load the matrix library, so that the first step does not wait for them. Raises
    DeviceUnusable."""
    device = claim(kind, gpu_index)
    if device.type == "cuda":
        square = torch.zeros(16, 16, device=device)
        torch.mm(square, square)
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def _keep_freed_memory() -> None:
    """Let glibc reuse the memory of freed large tensors, instead of returning it to the kernel, which clears new pages.

    Every virtual node allocates and frees gradients: at 25 million parameters, new pages take a quarter of a step.
    """
    _set_malloc_options(*_KEPT_HEAP)


def use_one_heap() -> None:
    """Let all threads share one heap; before the first thread starts. A second heap, once there, is given to later
    threads as well, and takes large tensors as new pages from the kernel whatever `claim` sets."""
    _set_malloc_options(_ONE_HEAP)


def _set_malloc_options(*options: tuple[int, int]) -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, value in options:
            libc.mallopt(parameter, value)


def choose_repeatable_kernels(device: torch.device) -> None:
    """Make GPU libraries and torch's compiler choose kernels that give the same bits each time, for this thread and the
    cooperative threads that it starts; some convolutions become slower.

    torch raises an error for an operation that has no such kernel, unless `allow_other_kernels` or the user's code has
    chosen a warning: with it, attention would have another backward pass on each run. Without the compiler, one CPU
    thread is always repeatable.
    """
    compile_each_shape_alone()
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=other_kernels_are_allowed())
        # it would find mistakes in kernels, but costs time
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
        torch.backends.cudnn.benchmark = False  # it would choose the kernel that is fastest at the moment


def allow_other_kernels() -> None:
    """Let torch only warn, from now on, where it has no repeatable kernel; in the whole process."""
    torch.use_deterministic_algorithms(True, warn_only=True)


@contextmanager
def allowing_other_kernels() -> Iterator[None]:
    """Allow other kernels within the block, for code that changes no weights and may first run late, such as an
    evaluation."""
    is_strict = torch.are_deterministic_algorithms_enabled() and not other_kernels_are_allowed()
    if is_strict:
        allow_other_kernels()
    try:
        yield
    finally:
        if is_strict:
            torch.use_deterministic_algorithms(True)


def other_kernels_are_allowed() -> bool:
    return torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()


def has_no_repeatable_kernel(error: BaseException) -> bool:
    """Whether torch refused an operation, after `choose_repeatable_kernels`."""
    return isinstance(error, RuntimeError) and "does not have a deterministic implementation" in str(error)


def prepare_thread(device: torch.device) -> None:
    """Let another thread compute on the device that this process has claimed."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(torch.get_num_threads())  # otherwise a new thread may use all cores


def finish_work(device: torch.device) -> None:
    """Return when the device has finished all work; raises its errors.

    CUDA calls return early. A worker that ended during its last sum would block its peers' GPUs.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """Time from `start` to the last `lap`; on a GPU, the device's own time between the two."""

    def __init__(self, device: torch.device) -> None:
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if device.type == "cuda":
            self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._began_s = self._lap_s = 0.0
        self.start()

    def start(self) -> None:
        self._lapped = False
        self._began_s = time.monotonic()
        if self._events is not None:
            self._events[0].record()

    def lap(self) -> None:
        self._lapped = True
        self._lap_s = time.monotonic()
        if self._events is not None:
            self._events[1].record()

    def seconds(self) -> float:
        """The measured time, once the device has reached the lap; up to now if there was no lap."""
        if not self._lapped:
            self.lap()
        if self._events is None:
            return self._lap_s - self._began_s
        began, ended = self._events
        ended.synchronize()
        return began.elapsed_time(ended) / 1000


# --- device numbers -----------------------------------------------------------------------------------
# Numbers that a device computes, on their way to the host: nothing waits for them until they are read.

Number = float | torch.Tensor


def number_of(value: Any) -> Number:
    """A number as it is now, also if the device computes it later and the tensor changes after that.

    Raises TypeError, ValueError or RuntimeError if it is none.
    """
    if not isinstance(value, torch.Tensor):
        return float(value)
    if value.is_complex():
        raise TypeError("a complex number")
    return value.detach().reshape(()).to(torch.float64, copy=True)


class DeviceNumbers:
    """Rows of numbers by name. The constructor begins to copy those of a device to the host."""

    def __init__(self, rows: Sequence[Mapping[str, Number]]) -> None:
        self._rows = rows
        self.names = [tuple(row) for row in rows]
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for number in (number for row in rows for number in row.values()):
            if isinstance(number, torch.Tensor):
                by_device.setdefault(number.device, []).append(number)
        self._copies = {device: _begin_copy(torch.stack(numbers)) for device, numbers in by_device.items()}
        self._copied: torch.cuda.Event | None = None
        if any(device.type == "cuda" for device in by_device):
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> list[dict[str, float]]:
        """Wait for the device, unless it is done with them."""
        if self._copied is not None:
            self._copied.synchronize()
        arrived = {device: iter(copy.tolist()) for device, copy in self._copies.items()}
        return [
            {
                name: next(arrived[number.device]) if isinstance(number, torch.Tensor) else number
                for name, number in row.items()
            }
            for row in self._rows
        ]


def _begin_copy(numbers: torch.Tensor) -> torch.Tensor:
    if not numbers.is_cuda:
        return numbers
    return torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
