"""torch.compile in a job: each shape has a graph of its own, so that bits follow from the inputs of a call only.

By default, torch compiles the first shape of a process as it is, and the second one with variable sizes. Then the order
in which a worker meets the shapes, and so the number of workers, would decide its kernels.
"""

import sys

import torch._dynamo.config
import torch._inductor.config
from torch import nn

MOST_SHAPES = 64  # of one compiled function; beyond them torch would continue without compiling


def compile_each_shape_alone() -> None:
    """Choose these settings in this thread: torch's settings are context variables, which `CooperativeThread`
    inherits."""
    torch._dynamo.config.automatic_dynamic_shapes = False
    torch._dynamo.config.recompile_limit = MOST_SHAPES
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._inductor.config.deterministic = True  # times no kernels on a GPU, to choose the fastest at the moment


def has_too_many_shapes(error: BaseException) -> bool:
    """Whether a compiled function met more than `MOST_SHAPES`."""
    return type(error).__name__ == "FailOnRecompileLimitHit"


def has_compiled() -> bool:
    """Whether this process has compiled anything."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


CUDA_GRAPHS_REFUSED = (
    'CUDA graphs of torch.compile (mode="reduce-overhead" or "max-autotune", or the option "triton.cudagraphs") do not '
    "work in the bitwise mode: they write again into the memory of gradients that are still summed. Compile with "
    'another mode, such as "max-autotune-no-cudagraphs", or set reproducible = "fast"'
)
_CUDA_GRAPHS = "torch._inductor.cudagraph_trees"


def uses_cuda_graphs() -> bool:
    """Whether this thread has called a compiled function with CUDA graphs."""
    loaded = sys.modules.get(_CUDA_GRAPHS)
    return loaded is not None and bool(getattr(loaded.local, "tree_manager_containers", None))


def is_refused_cuda_graph(error: BaseException) -> bool:
    """Whether torch refused them: up to 2.11 they need the main thread, and it says so with an empty error."""
    error = getattr(error, "inner_exception", error)  # of the compiler's own errors
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    module = "" if last is None else last.tb_frame.f_globals.get("__name__", "")
    return isinstance(error, AssertionError) and module == _CUDA_GRAPHS


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is compiled, by `torch.compile(module)` or `module.compile()`."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
