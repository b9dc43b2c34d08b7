"""The hash chain of a ledger: one digest for all messages up to a sequence, in order (docs/adr/0060).

    digest(n) = hash(digest(n - 1), hash(n, subject, bytes))

A decision carries the digest at the sequence on which it rests (`PlanDecided.chain`). A reader whose own digest there
differs has read other messages: one was changed, dropped, doubled or forged after the decision, or before it was read.
"""
# pyright: strict

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage

MAX_RECENT = 4_096  # messages after a decision on which the next one may rest and still be checked
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainBreak:
    """The decision at this sequence rests on other messages than those that were read from first to last.

    The decision itself may be the changed message. snapshot: the sequence of that from which the reader started, if
    no decision since then agrees; 0: none.
    """

    first: int
    last: int
    decision: int
    snapshot: int = 0

    def in_words(self) -> str:
        snapshot = f"the snapshot at {self.snapshot}, or " if self.snapshot else ""
        messages = f"messages {self.first} to {self.last}"
        return f"{snapshot}{messages} are not those on which the decision at {self.decision} rests"


class _Link(NamedTuple):
    sequence: int
    entry: bytes  # the hash of the message
    digest: bytes  # up to this message


class LedgerChain:
    """The chain as one reader computes it, from the start of a ledger, or from a sequence whose digest is known.

    last_break: the newest one. After it the digest of the decision counts, so that one change is found once.
    """

    def __init__(self, sequence: int = 0, digest: str = "") -> None:
        self.last_break: ChainBreak | None = None
        self._verified = self._started_at = sequence
        self._recent = deque([_Link(sequence, b"", bytes.fromhex(digest))])
        # a planner has read the decision before its own, so it rests on that one or on a later message
        self._begins_at_decision = sequence == 0

    @property
    def sequence(self) -> int:
        return self._recent[-1].sequence

    @property
    def digest(self) -> str:
        """The digest of all messages up to `sequence`, in hexadecimal digits."""
        return self._recent[-1].digest.hex()

    def add(self, record: LedgerRecord, message: LedgerMessage) -> ChainBreak | None:
        """Append the next message; the break, if this is a decision on other messages.

        message: the record, decoded. Decisions without a chain are of older versions, or of operators.
        """
        found = None
        if isinstance(message, PlanDecided) and message.chain:
            found = self._checked(record.sequence, message.based_on, bytes.fromhex(message.chain))
            self.last_break = found or self.last_break
        entry = _entry(record)
        digest = _hashed(self._recent[-1].digest + entry)
        if isinstance(message, PlanDecided):
            self._recent.clear()
            self._begins_at_decision = True
        elif len(self._recent) == MAX_RECENT:
            self._recent.popleft()
            self._begins_at_decision = False
        self._recent.append(_Link(record.sequence, entry, digest))
        return found

    def _checked(self, sequence: int, based_on: int, digest: bytes) -> ChainBreak | None:
        index = based_on - self._recent[0].sequence
        if index < 0 and not self._begins_at_decision:
            return None  # it rests on a message that is no longer kept here; the next decision covers it
        first, last = self._verified + 1, min(based_on, sequence - 1)
        snapshot = self._started_at if self._verified == self._started_at else 0
        self._verified = max(last, self._verified)
        if 0 <= index < len(self._recent):
            if self._recent[index].digest == digest:
                return None
            self._adopt(index, digest)
        return ChainBreak(first=min(first, last), last=last, decision=sequence, snapshot=snapshot)

    def _adopt(self, index: int, digest: bytes) -> None:
        """Continue from the digest of the decision."""
        for at in range(index, len(self._recent)):
            link = self._recent[at]
            digest = digest if at == index else _hashed(digest + link.entry)
            self._recent[at] = link._replace(digest=digest)


def digest_with(digest: str, record: LedgerRecord) -> str:
    """The chain after the next message, in hexadecimal digits. digest: before it, "" at the start of the ledger."""
    return _hashed(bytes.fromhex(digest) + _entry(record)).hex()


def _entry(record: LedgerRecord) -> bytes:
    return _hashed(f"{record.sequence} {record.subject}\n".encode() + record.data)


def _hashed(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
