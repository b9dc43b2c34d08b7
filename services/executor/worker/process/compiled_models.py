"""torch.compile in a job: each shape has a graph of its own, so that bits follow from the inputs of a call only.

By default, torch compiles the first shape of a process as it is, and the second one with variable sizes. Then the order
in which a worker meets the shapes, and so the number of workers, would decide its kernels.
"""

import torch._dynamo.config
import torch._inductor.config
from torch import nn

MOST_SHAPES = 64  # of one compiled function; beyond them torch would continue without compiling


def compile_each_shape_alone() -> None:
    """In this thread: torch's settings are context variables, which `CooperativeThread` inherits."""
    torch._dynamo.config.automatic_dynamic_shapes = False
    torch._dynamo.config.recompile_limit = MOST_SHAPES
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._inductor.config.deterministic = True  # times no kernels on a GPU, to choose the fastest at the moment


def has_too_many_shapes(error: BaseException) -> bool:
    """Whether a compiled function met more than `MOST_SHAPES`."""
    return type(error).__name__ == "FailOnRecompileLimitHit"


def is_compiled(module: nn.Module) -> bool:
    """By `torch.compile(module)` or `module.compile()`."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
