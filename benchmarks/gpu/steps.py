"""A step of GPT-2 and ResNet-50 on one worker: plain DDP, the fast mode, and bitwise with 1 to 8 virtual nodes.

Each has a process of its own, since a bitwise mode chooses deterministic kernels for its whole process.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping

import torch

from benchmarks.engine.parts import Device
from benchmarks.engine.steady import PLAIN_MODE, SteadyCase, steps_of_ranks
from benchmarks.report import Measured, Row

_MODES = (PLAIN_MODE, "fast", "bitwise_1", "bitwise_2", "bitwise_4", "bitwise_8")
_QUICK_MODES = (PLAIN_MODE, "fast", "bitwise_2")
_SIZES = {"gpt2": 124, "resnet50": 25}  # millions of parameters
_ROUNDS, _QUICK_ROUNDS = 12, 2
# Floating-point operations per second in bfloat16 without sparsity, by part of a product's name.
_PEAK_FLOPS: Mapping[str, float] = {"H100": 989e12, "H200": 989e12, "A100": 312e12}


def measure(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    """Notes by model and mode the median and the least seconds of a step, and the model's operations."""
    for model, size in ({"gpt2": 1} if quick else _SIZES).items():
        measured: Measured = {}
        for mode in _QUICK_MODES if quick else _MODES:
            case = SteadyCase(
                model=model,
                million_parameters=1 if quick else size,
                num_workers=1,
                rounds=_QUICK_ROUNDS if quick else _ROUNDS,
                modes=(mode,),
                device=device,
            )
            (taken,) = steps_of_ranks(case)
            wall_s = taken[mode]["wall_s"]
            measured[mode] = {"step_s": statistics.median(wall_s), "least_s": min(wall_s)}
            if mode == PLAIN_MODE:
                measured["flops"] = taken[mode]["flops"]
                measured["peak_flops"] = _peak_flops(device)
            note(**{model: measured})


def _peak_flops(device: Device) -> float | None:
    """The peak of the device; None if it is unknown."""
    if device == Device.CPU:
        return None
    name = torch.cuda.get_device_properties(0).name
    return next((peak for part, peak in _PEAK_FLOPS.items() if part in name), None)


def rows(measured: Measured) -> Iterable[Row]:
    for model, found in measured.items():
        plain_s = found[PLAIN_MODE]["step_s"]
        for mode in (mode for mode in _MODES if mode in found):
            step_s = found[mode]["step_s"]
            ratio = "" if mode == PLAIN_MODE else f"{step_s / plain_s:.3f} times plain DDP"
            flops_per_s, peak = found["flops"] / step_s, found["peak_flops"]
            used = f"{flops_per_s / peak:.1%} of the peak" if peak else f"{flops_per_s / 1e12:.3f} TFLOP/s"
            beside = ", ".join(filter(None, (ratio, used)))
            yield Row(f"step of {model}, {mode}", f"{step_s * 1e3:.1f} ms", beside=beside)
