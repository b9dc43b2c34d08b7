"""The one device of a worker: its part of the cores, or one GPU of the node."""

import ctypes
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from shared.errors import Retry

_MALLOC_OPTIONS = (  # of glibc's malloc.h
    (-4, 0),  # M_MMAP_MAX: nothing outside of the heap
    (-1, 2**31 - 1),  # M_TRIM_THRESHOLD: bytes free at its end before it shrinks
    (-8, 1),  # M_ARENA_MAX: one heap for all threads
)


_NO_MEMORY = (  # how torch's allocators and libraries say it where they raise a plain RuntimeError
    "DefaultCPUAllocator",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


_DEVICE_LOST = (  # as the CUDA runtime puts it
    "no CUDA-capable device is detected",
    "CUDA-capable device(s) is/are busy or unavailable",
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "hardware stack error",
    "unknown error",
)


@dataclass(eq=False)
class DeviceLost(Retry):
    """Not the job's fault. reason: as CUDA put it."""

    reason: str

    SENTENCE: ClassVar[str] = "the GPU was lost: {reason}; look for Xid in the node's kernel log"


@dataclass(eq=False)
class MemoryExceeded(Retry):
    """Nothing has changed: smaller micro-batches may fit. micro_batch_size: samples."""

    micro_batch_size: int
    reason: str

    SENTENCE: ClassVar[str] = "{micro_batch_size} samples at once do not fit into the memory: {reason}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device's memory, or the node's, did not suffice."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


def release_memory(device: torch.device) -> None:
    """Give back what nobody uses any more, in one piece."""
    gc.collect()  # an error and the frames that it came through hold each other
    if device.type == "cuda":
        torch.cuda.empty_cache()


@dataclass(eq=False)
class DeviceUnusable(Retry):
    """Not the job's fault: it may be started again, here or elsewhere. gpu_index: as this process counts them."""

    gpu_index: int
    reason: str
    torch_version: str = torch.__version__

    SENTENCE: ClassVar[str] = (
        "torch {torch_version} cannot use GPU {gpu_index}, which nvidia-smi lists: {reason}; install a build of torch "
        "that fits the node's driver, or start its executor with EF_DEVICE=cpu"
    )


def is_lost(error: BaseException) -> bool:
    """Whether the device itself has failed, whatever it was told to do."""
    return isinstance(error, torch.AcceleratorError) and any(text in str(error) for text in _DEVICE_LOST)


def claim(kind: str, gpu_index: int) -> torch.device:
    """The device of this process from here on, also where code only says "cuda". Raises DeviceUnusable."""
    if kind == "cpu":
        torch.set_num_threads(1)  # a slot is at most one core
        _keep_freed_memory()
        return torch.device("cpu")
    try:
        torch.cuda.init()
        torch.cuda.set_device(gpu_index)
    except (
        AssertionError,
        RuntimeError,
    ) as error:  # torch without CUDA; no driver, no such GPU, a broken one
        raise DeviceUnusable(gpu_index, str(error).partition("\n")[0]) from error
    return torch.device("cuda", gpu_index)


def warm_up(kind: str, gpu_index: int) -> None:
    """What a worker's first step would wait for: on a GPU, its context, and the library that multiplies. Raises
    DeviceUnusable."""
    device = claim(kind, gpu_index)
    if device.type == "cuda":
        square = torch.zeros(16, 16, device=device)
        torch.mm(square, square)
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def _keep_freed_memory() -> None:
    """Let glibc use a large tensor's memory again, where it would give it back and have the kernel clear new pages.

    Gradients come and go with each virtual node: at 25 million parameters that is a quarter of a step's time.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, value in _MALLOC_OPTIONS:
            libc.mallopt(parameter, value)


def choose_repeatable_kernels(device: torch.device) -> None:
    """Where GPU libraries have a choice: those that give the same bits each time, slower ones for some convolutions.
    torch names an operation that has no such kernel in a warning. One thread of a CPU has no choice."""
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
        # it would find mistakes in kernels, at a price
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
        torch.backends.cudnn.benchmark = False  # it would choose by what is fastest just now


def prepare_thread(device: torch.device) -> None:
    """Let another thread of this process compute as the one that has claimed the device."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(torch.get_num_threads())  # a new thread may take all cores until it is told


def finish_work(device: torch.device) -> None:
    """Return when the device has done all that it was told; raises what went wrong there.

    Calls of CUDA return early. A worker that left while its last sum was under way would hang the others' GPUs.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Copies:
    """Of batches to the device, beside its work: begun on any thread, finished where they are used."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begin(self, batch: Any) -> Any:
        """What `finish` takes. From pinned memory, nobody waits for the copy."""
        if self._stream is None:
            return batch
        with torch.cuda.stream(self._stream):
            return moved(batch, self._device), self._stream.record_event()

    def finish(self, begun: Any) -> Any:
        """The batch with all its tensors on the device; what is told to the device from now on finds them there."""
        if self._stream is None:
            return begun
        batch, copied = begun
        here = torch.cuda.current_stream(self._device)
        here.wait_event(copied)
        for tensor in tensors_in(batch):
            tensor.record_stream(here)  # or its memory could be given away while it is used here
        return batch


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with all its tensors on the device."""
    match batch:
        case torch.Tensor():
            return batch.to(device, non_blocking=True)
        case Mapping():
            return {key: moved(value, device) for key, value in batch.items()}
        case list() | tuple():
            return [moved(value, device) for value in batch]
        case _:
            return batch


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Of a batch as `moved` returns it."""
    match batch:
        case torch.Tensor():
            yield batch
        case dict():
            for value in batch.values():
                yield from tensors_in(value)
        case list():
            for value in batch:
                yield from tensors_in(value)
        case _:
            pass
