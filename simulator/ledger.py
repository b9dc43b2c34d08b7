"""A ledger in memory that keeps what the real one promises: an order without gaps, compare-and-set, and no more.

It does not drop repeated message ids, as the real one forgets them after two minutes: readers must bear that.
"""

from collections import defaultdict
from collections.abc import Callable

from shared.errors import WrongExpectedSequence
from shared.messages.export import ExportWriter, LedgerRecord
from simulator.engine import Engine
from simulator.replay import Entry, read_entries


class VirtualLedger:
    """on_append: told of each new sequence."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.records: list[LedgerRecord] = []
        self.entries: list[Entry] = []  # decoded once for all readers
        self.on_append: list[Callable[[int], None]] = []
        self._last: defaultdict[str, int] = defaultdict(int)

    @property
    def last_sequence(self) -> int:
        return len(self.records)

    def append(self, subject: str, data: bytes, *, message_id: str, expected: int | None = None) -> int:
        """The sequence it got. expected: store only if the subject's last message has this sequence."""
        if expected is not None and expected != self._last[subject]:
            raise WrongExpectedSequence(subject, expected)
        record = LedgerRecord(
            sequence=self.last_sequence + 1,
            subject=subject,
            message_id=message_id,
            stored_at_s=self._engine.now_s,
            data=data,
        )
        self.records.append(record)
        self.entries += read_entries((record,))
        self._last[subject] = record.sequence
        for told in self.on_append:
            told(record.sequence)
        return record.sequence

    def export(self, writer: ExportWriter) -> None:
        """Write all of it, with its end."""
        for record in self.records:
            writer.add(record)
        writer.finish()
