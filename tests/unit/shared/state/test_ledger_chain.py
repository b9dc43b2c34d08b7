"""The chain of a ledger: a decision on other messages than those that were read is found."""

from dataclasses import replace

from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import Event, JobProgressed, PlanDecided
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.service.ledger_encoding import read_message
from elasticflow.shared.state.ledger_chain import MAX_RECENT, ChainBreak, LedgerChain

POOL = "p"


class Ledger:
    """Messages, as a planner that reads all of them writes its decisions."""

    def __init__(self) -> None:
        self.records: list[LedgerRecord] = []
        self.chain = LedgerChain()

    def progress(self, times: int = 1) -> "Ledger":
        for _ in range(times):
            sequence = len(self.records) + 1
            event = JobProgressed(
                job_id="a", generation=1, iteration=sequence, iterations_per_s=None, at_s=float(sequence)
            )
            self._append(subjects.job(POOL, "a"), event)
        return self

    def decision(self, *, with_chain: bool = True, after: int = 0) -> "Ledger":
        """after: so many messages arrive between the state on which it rests and the decision."""
        rests_on = PlanDecided(
            service="allocator",
            based_on=self.chain.sequence,
            now_s=1.0,
            chain=self.chain.digest if with_chain else "",
            events=(),
        )
        self.progress(after)
        self._append(subjects.plan(POOL), rests_on)
        return self

    def _append(self, subject: str, message: Event | PlanDecided) -> None:
        data = codec.encode(message, id="", recorded_at_s=1.0)
        record = LedgerRecord(
            sequence=len(self.records) + 1, subject=subject, message_id="", stored_at_s=1.0, data=data
        )
        self.records.append(record)
        self.chain.add(record, message)


def breaks(records: list[LedgerRecord], chain: LedgerChain | None = None) -> list[ChainBreak]:
    """As found by a reader of these records."""
    chain = chain or LedgerChain()
    found = (chain.add(record, read_message(record)) for record in records)
    return [each for each in found if each is not None]


def changed(record: LedgerRecord) -> LedgerRecord:
    return replace(record, data=record.data[:-1] + bytes([record.data[-1] ^ 1]))


def test_a_ledger_that_nothing_changed_has_no_break() -> None:
    ledger = Ledger().progress(3).decision().progress(2).decision(after=2).decision()
    assert breaks(ledger.records) == []


def test_a_changed_message_is_found_at_the_next_decision_and_only_once() -> None:
    ledger = Ledger().progress(3).decision().progress(3).decision().progress().decision()
    ledger.records[5] = changed(ledger.records[5])
    assert breaks(ledger.records) == [ChainBreak(first=4, last=7, decision=8)]


def test_a_message_that_was_changed_after_a_decision_had_passed_it_over_is_found_at_the_one_after_it() -> None:
    ledger = Ledger().progress().decision(after=2).progress().decision()
    ledger.records[1] = changed(ledger.records[1])
    assert breaks(ledger.records) == [ChainBreak(first=2, last=5, decision=6)]


def test_another_subject_breaks_the_chain_too() -> None:
    ledger = Ledger().progress(2).decision()
    ledger.records[1] = replace(ledger.records[1], subject=subjects.job(POOL, "b"))
    assert breaks(ledger.records) == [ChainBreak(first=1, last=2, decision=3)]


def test_decisions_without_a_chain_are_read_as_before() -> None:
    ledger = Ledger().progress().decision(with_chain=False).progress().decision(with_chain=False)
    ledger.records[0] = changed(ledger.records[0])
    assert breaks(ledger.records) == []


def test_the_first_chain_of_an_upgraded_pool_covers_what_was_there() -> None:
    ledger = Ledger().progress().decision(with_chain=False).progress().decision()
    assert breaks(ledger.records) == []
    ledger.records[0] = changed(ledger.records[0])
    assert breaks(ledger.records) == [ChainBreak(first=1, last=3, decision=4)]


def test_a_reader_that_starts_from_a_snapshot_continues_its_chain() -> None:
    ledger = Ledger().progress(3)
    sequence, digest = ledger.chain.sequence, ledger.chain.digest
    ledger.progress(2).decision()
    assert breaks(ledger.records[sequence:], LedgerChain(sequence, digest)) == []
    forged = LedgerChain(sequence, "00" * 16)
    assert breaks(ledger.records[sequence:], forged) == [ChainBreak(first=4, last=5, decision=6, snapshot=3)]


def test_a_decision_on_more_messages_ago_than_a_reader_keeps_is_checked_by_the_next_one() -> None:
    ledger = Ledger().progress().decision(after=MAX_RECENT + 1).decision()
    assert breaks(ledger.records) == []
    ledger.records[0] = changed(ledger.records[0])
    assert [found.decision for found in breaks(ledger.records)] == [len(ledger.records)]
