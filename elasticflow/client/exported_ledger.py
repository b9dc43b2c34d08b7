"""An exported ledger, read as a pool is: what a command shows of one, it shows of the other."""

import shlex
from collections.abc import AsyncGenerator
from pathlib import Path

from elasticflow.client.ledger import LedgerEntry, read_ledger
from elasticflow.errors import UnknownJob
from elasticflow.history.job_history import HistoryEntry, job_history
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.pool import PoolState


class ExportedLedger:
    """Of a file that `eflow events export` wrote. Time stands at its last message. Raises NotAnExport."""

    def __init__(self, file: Path) -> None:
        self._file, self._entries = file, read_ledger(file)

    @property
    def ledger(self) -> "ExportedLedger":
        return self

    def now_s(self) -> float:
        return self._entries[-1][0].stored_at_s if self._entries else 0.0

    async def last_sequence(self) -> int:
        return self._entries[-1][0].sequence if self._entries else 0

    async def entries(self, *, after_sequence: int = 0, up_to: int | None = None) -> AsyncGenerator[LedgerEntry, None]:
        for stored, message in self._entries:
            if after_sequence < stored.sequence and (up_to is None or stored.sequence <= up_to):
                yield stored, message

    async def state(self) -> PoolState:
        state = PoolState()
        for stored, message in self._entries:
            state = ledger_fold.evolve(state, message, stored.sequence)
        return state

    async def known_history(self, name: str) -> tuple[HistoryEntry, ...]:
        """Raises UnknownJob, with close names."""
        history = job_history(
            ((stored.sequence, stored.stored_at_s, message) for stored, message in self._entries), name
        )
        if not history:
            lister = f"eflow jobs --all --file {shlex.quote(str(self._file))}"
            raise UnknownJob(name, str(self._file), (await self.state()).names, lister)
        return history
