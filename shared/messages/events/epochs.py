"""What the ledger says about its snapshots: those of its epochs, and the monitor's own (docs/adr/0061, 0078)."""

from dataclasses import dataclass
from typing import ClassVar

from elasticflow.shared.messages.limits import ChainDigest, Digest, Sequence, TimeS, Token


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSaved:
    """A service may start from the state after message based_on. From the monitor.

    snapshot: the SHA-256 of the state, as it is stored. shape: of fold and state, for readers of the same one.
    It says what others have decided, so it changes no state.
    """

    VERSION: ClassVar[int] = 1
    based_on: Sequence
    snapshot: Digest
    shape: Token
    at_s: TimeS
