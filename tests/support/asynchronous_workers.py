"""Preloaded by a fork server: all its workers exchange tensors as over NCCL. A test process must not import it."""

from benchmarks.engine.transports import TransportName, use_in_this_process

use_in_this_process(TransportName.ASYNCHRONOUS)
print(__name__, flush=True)  # to the fork server's log, since a failed import would be passed over
