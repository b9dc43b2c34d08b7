"""What all parts of a service act on, passed to them once: by its process, or by a simulation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.ledger_encoding import read_message
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """instance: differs from that of any other process. read: a message of the ledger, as this version reads it."""

    bus: Bus
    pool: str
    clock: Clock
    instance: str
    log: Any
    metrics: Metrics
    read: Callable[[LedgerRecord], LedgerMessage] = read_message
