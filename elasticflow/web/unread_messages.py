"""What a ledger holds that this eflow cannot read, so that the page does not look complete without it. Pure."""

from dataclasses import dataclass

from elasticflow.shared.messages.envelope.codec import READER_VERSION
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.pool import PoolState

_MAX_PROBLEM_CHARS = 200
_OF_NEWER = ("is unknown here", "is newer than")  # in the problems that `codec` names


@dataclass(slots=True, kw_only=True)
class UnreadMessages:
    """count: of them; wanted_version: of the reader, if the pool asks for a newer one than this, else 0."""

    first_sequence: int = 0
    count: int = 0
    problem: str = ""  # of the first
    wanted_version: int = 0

    def note(self, sequence: int, message: LedgerMessage, state: PoolState) -> None:
        """state: after the message."""
        if isinstance(message, Unreadable):
            self.count += 1
            self.problem = self.problem or "; ".join(message.problems).partition("; known are")[0][:_MAX_PROBLEM_CHARS]
        elif state.config.minimum_reader_version > READER_VERSION:
            self.wanted_version = max(self.wanted_version, state.config.minimum_reader_version)
        else:
            return
        self.first_sequence = self.first_sequence or sequence

    def in_words(self) -> str:
        """From where on the page is incomplete, why, and what helps; "" if all was read."""
        if not self.first_sequence:
            return ""
        words = [
            f"Incomplete from message {self.first_sequence} on: this eflow reads messages of version {READER_VERSION}"
        ]
        if self.wanted_version:
            words.append(f"the pool asks for version {self.wanted_version}")
        if self.count:
            noun = "message" if self.count == 1 else "messages"
            words.append(f"{self.count} {noun} cannot be read, the first because of its {self.problem}")
        advice = "Use a newer eflow to see all of it."
        if not self.wanted_version and not any(word in self.problem for word in _OF_NEWER):
            advice = "The ledger is damaged there, or a newer eflow wrote it: try that."
        return f"{'; '.join(words)}. {advice}"
