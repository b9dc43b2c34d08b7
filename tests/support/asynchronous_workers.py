"""Preloaded by a fork server: all its workers exchange tensors as over NCCL."""

from benchmarks.engine.transports import TransportName, use_in_this_process

USED = "workers use the asynchronous transport"

use_in_this_process(TransportName.ASYNCHRONOUS)
print(USED, flush=True)  # to the fork server's log, since a failed import would be passed over
