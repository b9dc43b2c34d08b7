"""What an operator can do about GPUs that NCCL does not connect: one line for the job's log."""

from elasticflow.services.executor.worker.elastic.data_interface import CHECK_NETWORK, warn_unconnected

_CAUSES = (  # in NCCL's messages, the most specific ones first
    (
        ("out of memory", "CUDA calloc", "CUDA malloc"),
        "NCCL's buffers need memory of the GPU beside the job's, and those of two groups during a resize: end other "
        "processes on it, set NCCL_MAX_CTAS or NCCL_BUFFSIZE (bytes) lower for all executors, or let the job use less",
    ),
    (
        ("Duplicate GPU",),
        "two workers have one GPU, which their executors do not see: let their CUDA_VISIBLE_DEVICES name different "
        "GPUs, or give the executors of one machine one host name",
    ),
    (("ncclSystemError", "system error", "ncclRemoteError", "remote", "socket", "did not answer"), CHECK_NETWORK),
)
_ELSE = "set NCCL_DEBUG=WARN for the executors: NCCL then writes the cause to the job's log"


def one_line(message: str) -> str:
    """Of torch's error: NCCL's result and its last error, without the frames of the library."""
    return " ".join(message.partition("Exception raised from")[0].split())


def advice_for(reason: str) -> str:
    return next((advice for texts, advice in _CAUSES if any(text in reason for text in texts)), _ELSE)


def warn_of_nccl(reason: str) -> None:
    """reason: one line."""
    warn_unconnected("nccl", reason, advice_for(reason))
