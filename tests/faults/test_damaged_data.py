"""One changed bit of what NATS has stored leads to the same answer, or to an error or warning that names it."""

# pyright: reportPrivateUsage=false

import asyncio
from pathlib import Path

import pytest

from benchmarks.damage import CLOCK, POOL, Answer, Flip, Outcome, RecordedPool, ask, flips, record
from elasticflow.client.ledger import LedgerView
from elasticflow.client.operator_decisions import configure
from elasticflow.shared.errors import LedgerBroken
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats import direct_reader
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.service.ledger_bookmark import LedgerBookmark, older_ledger

LEDGER = streams.ledger_stream(POOL)
BEHIND_THE_ARCHIVE = 40  # a message that NATS has
WAIT_S = 120.0  # the benchmark asks for an answer within 10 s; here any answer will do
OF_LEDGER = ("configure", "service", "jobs", "history")


class Damaged:
    """Copies of one recorded pool, each with one damage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = record(folder / "recorded")
        _, self.right = ask(self.pool, folder / "copy", None, None, limit_s=WAIT_S)

    def flip(self, file: Path, offset: int, *, is_clean: bool = True) -> dict[str, Answer]:
        """offset: negative counts from the end."""
        size = file.stat().st_size
        place = str(file.relative_to(self.pool.folder))
        return self.ask(Flip(file=place, offset=offset % size, bit=0, is_clean=is_clean))

    def ask(self, flip: Flip) -> dict[str, Answer]:
        found, _ = ask(self.pool, self.folder / "copy", flip, self.right, limit_s=WAIT_S)
        assert [answer for answer in found if not answer.is_good] == [], flip
        return {answer.question: answer for answer in found}

    def block(self, stream: str) -> Path:
        return self.pool.stream_folder(stream) / "msgs" / "1.blk"


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    return Damaged(tmp_path_factory.mktemp("damaged"))


def outcomes(found: dict[str, Answer]) -> dict[str, Outcome]:
    return {name: answer.outcome for name, answer in found.items() if answer.outcome is not Outcome.RIGHT}


def test_a_damaged_message_at_the_end_of_the_ledger_is_named_to_each_reader(damaged: Damaged) -> None:
    """Nothing lies behind the gap: a reader would wait without end."""
    found = damaged.flip(damaged.block(LEDGER), -20)
    assert {name: found[name].outcome for name in OF_LEDGER} == dict.fromkeys(OF_LEDGER, Outcome.NAMED)
    for name in (*OF_LEDGER, "doctor"):
        assert "lacks message 66: " in found[name].text
        assert f"nats stream rm {LEDGER}" in found[name].text


def test_a_damaged_message_that_a_snapshot_hides_is_named_by_doctor(damaged: Damaged) -> None:
    found = damaged.flip(damaged.block(LEDGER), damaged.block(LEDGER).stat().st_size // 2)
    assert outcomes(found) == {"doctor": Outcome.WARNED, "history": Outcome.NAMED}
    assert "lacks message " in found["doctor"].text


def test_messages_that_nats_drops_after_a_kill_are_missed_by_who_has_read_them(damaged: Damaged) -> None:
    found = damaged.flip(damaged.block(LEDGER), damaged.block(LEDGER).stat().st_size // 2, is_clean=False)
    assert {found[name].outcome for name in OF_LEDGER} == {Outcome.WARNED}
    assert "but this machine has read it up to 66: NATS has older data" in found["warning"].text


def test_a_damaged_description_of_the_ledger_is_mended_by_configure(damaged: Damaged) -> None:
    found = damaged.flip(damaged.pool.stream_folder(LEDGER) / "meta.inf", 100)
    assert {found[name].outcome for name in OF_LEDGER} == {Outcome.RIGHT}
    assert f"stream {LEDGER} is missing: run `eflow configure" in found["doctor"].text


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_damaged_snapshot_costs_the_time_to_fold_the_ledger(damaged: Damaged, is_clean: bool) -> None:
    found = damaged.flip(damaged.block(f"OBJ_{streams.snapshot_bucket(POOL)}"), -300, is_clean=is_clean)
    assert outcomes(found) == {}


@pytest.mark.parametrize("bucket", [streams.code_bucket(POOL), streams.artifact_bucket(POOL)])
def test_a_damaged_object_is_named(damaged: Damaged, bucket: str) -> None:
    found = damaged.flip(damaged.block(f"OBJ_{bucket}"), 1000)
    assert outcomes(found) == {f"object in {bucket}": Outcome.NAMED}


@pytest.mark.parametrize("bucket", [streams.node_bucket(POOL), streams.log_bucket(POOL), streams.view_bucket(POOL)])
def test_a_damaged_value_is_named_by_doctor(damaged: Damaged, bucket: str) -> None:
    found = damaged.flip(damaged.block(f"KV_{bucket}"), 100)
    assert outcomes(found) == {f"value in {bucket}": Outcome.WARNED, "doctor": Outcome.WARNED}
    assert f"stream KV_{bucket} has 1 values that NATS cannot read" in found["doctor"].text


def test_a_node_that_reads_directly_is_told_of_the_damaged_end(damaged: Damaged) -> None:
    copy = damaged.pool.copied(damaged.folder / "copy")
    block = copy.stream_folder(LEDGER) / "msgs" / "1.blk"
    size = block.stat().st_size
    Flip(file=str(block.relative_to(copy.folder)), offset=size - 20, bit=0, is_clean=True).apply(copy.folder)

    async def read() -> None:
        with copy.server() as server:
            bus = await connect_nats(server.url, name="node")
            try:
                async with asyncio.timeout(60.0):
                    async for _ in direct_reader._read_directly(bus._connection, POOL, BEHIND_THE_ARCHIVE):
                        pass
            finally:
                await bus.close()

    with pytest.raises(LedgerBroken, match="lacks message 66: "):
        asyncio.run(read())


def test_an_older_copy_of_the_ledger_is_named_until_the_operator_accepts_it(damaged: Damaged) -> None:
    copy = damaged.pool.copied(damaged.folder / "copy")
    bookmark = LedgerBookmark.of_reader(copy.folder, POOL, "node-0")

    async def problem(*changes: float) -> str | None:
        """After these changes of the configuration; the node reads them and moves its bookmark only if asked to."""
        with copy.server() as server:
            for leave_s in changes:
                await configure(server.url, POOL, PoolConfig(leave_s=leave_s), CLOCK)
            bus = await connect_nats(server.url, name="test")
            try:
                return await older_ledger(bus, POOL, copy.folder)
            finally:
                await bus.close()

    async def read_to_the_end() -> None:
        with copy.server() as server:
            bus = await connect_nats(server.url, name="test")
            try:
                last = await bus.last_sequence(POOL)
                async for stored, _ in LedgerView(bus, POOL).entries(after_sequence=last - 1, up_to=last):
                    newest = stored
                bookmark.move(newest)
            finally:
                await bus.close()

    def restore_nats(recorded: RecordedPool) -> None:
        kept = bookmark.file.read_text()
        recorded.copied(copy.folder)
        bookmark.file.write_text(kept)

    assert asyncio.run(problem(100.0, 101.0)) is None
    asyncio.run(read_to_the_end())
    restore_nats(damaged.pool)
    assert "ends at message 66, but this machine has read it up to 68" in (asyncio.run(problem()) or "")
    assert "has another message 68" in (asyncio.run(problem(200.0, 201.0, 202.0)) or "")
    bookmark.file.unlink()
    assert asyncio.run(problem()) is None


@pytest.mark.nightly("300 flips take minutes; the tests above have one of each kind of file")
def test_any_bit_of_any_file(damaged: Damaged) -> None:
    for flip in flips(damaged.pool, 300, seed=42):
        damaged.ask(flip)
