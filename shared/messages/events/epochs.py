"""Epochs of a ledger (docs/adr/0061)."""

from dataclasses import dataclass
from typing import ClassVar

from elasticflow.shared.messages.limits import ChainDigest, Digest, Sequence, TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegan:
    """All messages up to based_on are in archives, and a reader may start after them. From the operator.

    chain: the digest of all these messages (shared/state/ledger_chain.py). snapshot: the SHA-256 of the state there, as
    it is stored. fold: FOLD of the program that made it; a later one continues from this state.
    It says what others have decided, so it changes no state.
    """

    VERSION: ClassVar[int] = 1
    based_on: Sequence
    chain: ChainDigest
    snapshot: Digest
    fold: Sequence
    at_s: TimeS
