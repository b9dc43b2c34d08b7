"""How a worker configures its device."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextvars import copy_context
from types import SimpleNamespace

import pytest
import torch

from elasticflow.services.executor.worker.process import device
from elasticflow.services.executor.worker.process.device import (
    SLOTS_OF_GPU,
    allow_other_kernels,
    allowing_other_kernels,
    choose_repeatable_kernels,
    claim,
    has_no_repeatable_kernel,
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    benchmark, fill = torch.backends.cudnn.benchmark, torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark, torch.utils.deterministic.fill_uninitialized_memory = benchmark, fill


def test_a_gpu_uses_repeatable_kernels_despite_settings_of_the_training_function() -> None:
    torch.backends.cudnn.benchmark = True
    copy_context().run(choose_repeatable_kernels, torch.device("cuda", 0))
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled(), "attention would differ from run to run"
    assert not torch.backends.cudnn.benchmark
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_an_operation_without_a_repeatable_kernel_runs_once_it_is_allowed() -> None:
    allow_other_kernels()
    copy_context().run(choose_repeatable_kernels, torch.device("cuda", 0))
    assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_an_evaluation_may_use_other_kernels_and_training_after_it_may_not() -> None:
    copy_context().run(choose_repeatable_kernels, torch.device("cuda", 0))
    with warnings.catch_warnings(action="ignore"), allowing_other_kernels():
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))
    with pytest.raises(RuntimeError) as refused:
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))
    assert has_no_repeatable_kernel(refused.value)


def test_a_cpu_slot_is_not_configured() -> None:
    copy_context().run(choose_repeatable_kernels, torch.device("cpu"))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(("inherited", "alone"), [("", "2"), ("4,5,6", "6"), ("GPU-a,GPU-b,MIG-c", "MIG-c")])
def test_a_worker_sees_only_its_own_gpu(monkeypatch: pytest.MonkeyPatch, inherited: str, alone: str) -> None:
    """Also after its warm-up, which claims it first: another GPU would get a context of half a gigabyte."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", inherited)
    monkeypatch.setenv(SLOTS_OF_GPU, "")
    started: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(started))
    monkeypatch.setattr(torch.cuda, "init", lambda: started.append(os.environ["CUDA_VISIBLE_DEVICES"]))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    gpu = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    bound: list[str] = []
    monkeypatch.setattr(device, "bind_to_numa_node", bound.append)
    assert claim("cuda", 2) == claim("cuda", 2) == torch.device("cuda", 0)
    assert started[0] == os.environ["CUDA_VISIBLE_DEVICES"] == alone
    assert set(bound) == {"0000:3b:00.0"}, "the cores next to it"


COMPILED_IN_A_THREAD = """
import os, threading, torch
from elasticflow.services.executor.worker.process.device import claim

claim("cpu", 0)
guarded = []
if not torch.backends.cuda.is_built():  # a model of torch's build for CUDA
    torch.backends.cuda.is_built = lambda: True
    torch._C._ensureCUDADeviceGuardSet = lambda: guarded.append(threading.current_thread() is threading.main_thread())
    claim("cpu", 0)
    assert guarded == [True]
for size in range(2):
    model = torch.compile(torch.nn.Linear(4, 4 + size), backend="aot_eager")
    thread = threading.Thread(target=lambda: model(torch.ones(2, 4)).sum().backward())
    thread.start()
    thread.join()
print("done", flush=True)
os._exit(0)
"""


def test_threads_compile_with_a_build_for_cuda_on_a_node_without_gpu() -> None:
    """Its stand-in for the GPU ended with the first thread that compiled, and the next one crashed the process."""
    ended = subprocess.run([sys.executable, "-c", COMPILED_IN_A_THREAD], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["done"]), ended.stderr


def new_pages_of_threads(*, first: str) -> int:
    """Pages that the kernel gives to four threads which allocate and free large tensors, once they have had them."""
    script = f"""
import resource, threading, torch
from elasticflow.services.executor.worker.process.device import claim, use_one_heap

def in_thread(act):
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()

def channel():
    idle.wait()

def allocate():
    for _ in range(3):
        torch.empty(30_000_000).fill_(1.0)

idle = threading.Event()
{first}
busy = threading.Thread(target=channel, daemon=True)
busy.start()
claim("cpu", 0)
before = 0
for repeat in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        in_thread(allocate)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    return int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the options are glibc's")
def test_threads_of_a_worker_reuse_the_memory_of_freed_tensors() -> None:
    """Although another thread, which has a heap of its own by default, was there before. A small allocation inside a
    freed tensor may cost one or two of the twelve tensors new pages."""
    own_heaps, one_heap = new_pages_of_threads(first=""), new_pages_of_threads(first="use_one_heap()")
    assert own_heaps > 100_000, "each tensor has 29,297 pages"
    assert one_heap < own_heaps / 3
