"""Archives of a ledger: what was written is read, and each that is missing or was changed is named."""

import gzip
from pathlib import Path

import pytest

from elasticflow.client.ledger import archive_name, archived_records
from elasticflow.shared.errors import LedgerUnusable
from elasticflow.shared.messages.events import EpochBegan
from elasticflow.shared.messages.export import ExportWriter, LedgerRecord
from elasticflow.shared.state.ledger_chain import digest_with
from tests.support.error_codes import coded

POOL = "my-pool"
RECORDS = tuple(
    LedgerRecord(
        sequence=sequence, subject=f"ef.ledger.{POOL}.job.j", message_id="", stored_at_s=1.0, data=bytes([sequence])
    )
    for sequence in range(1, 10)
)


def digest_at(sequence: int) -> str:
    digest = ""
    for record in RECORDS[:sequence]:
        digest = digest_with(digest, record)
    return digest


def write(folder: Path, first: int, last: int, *, digest: str = "", changed: int = 0) -> Path:
    """changed: the sequence of a message that is another one, with checksums that fit."""
    file = folder / archive_name(POOL, first, last, digest or digest_at(last))
    with file.open("wb") as opened, gzip.GzipFile("", "wb", fileobj=opened, mtime=0) as out:
        writer = ExportWriter(out)
        for record in RECORDS[first - 1 : last]:
            data = b"forged" if record.sequence == changed else record.data
            writer.add(
                LedgerRecord(
                    sequence=record.sequence, subject=record.subject, message_id="", stored_at_s=1.0, data=data
                )
            )
        writer.finish()
    return file


def epoch_after(last: int) -> EpochBegan:
    return EpochBegan(based_on=last, chain=digest_at(last), snapshot="0" * 64, fold=1, at_s=1.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, 1, 3)
    write(tmp_path, 4, 5)
    write(tmp_path, 6, 9)
    (tmp_path / "other-1-9-notes.txt").touch()
    return tmp_path


def read(folder: Path, after_sequence: int = 0, last: int = 9) -> list[int]:
    return [record.sequence for record in archived_records(folder, POOL, epoch_after(last), after_sequence)]


@pytest.mark.parametrize("after", range(10))
def test_the_archives_are_read_in_order_from_anywhere(folder: Path, after: int) -> None:
    assert read(folder, after) == list(range(after + 1, 10))


def test_an_attempt_that_did_not_become_an_epoch_is_passed_over(folder: Path) -> None:
    write(folder, 1, 4)
    write(folder, 1, 7)
    assert read(folder) == list(range(1, 10))
    assert read(folder, last=5) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("first", "last"), [(1, 3), (4, 5), (6, 9)])
def test_a_missing_archive_is_named_before_anything_is_read(folder: Path, first: int, last: int) -> None:
    (folder / archive_name(POOL, first, last, digest_at(last))).unlink()
    with pytest.raises(LedgerUnusable, match=f"has no {POOL}-...-{last}-", check=coded("archive_missing")):
        next(archived_records(folder, POOL, epoch_after(9)))


@pytest.mark.parametrize(("first", "last"), [(1, 3), (4, 5), (6, 9)])
def test_a_forged_message_is_found_in_its_archive(folder: Path, first: int, last: int) -> None:
    file = write(folder, first, last, changed=last - 1)
    with pytest.raises(LedgerUnusable, match=file.name, check=coded("archive_changed")):
        read(folder)


def test_a_forged_archive_under_a_name_that_fits_is_found_by_the_next_one(folder: Path) -> None:
    (folder / archive_name(POOL, 4, 5, digest_at(5))).unlink()
    write(folder, 4, 5, digest="f" * 32)
    with pytest.raises(LedgerUnusable, check=coded("archive_changed")):
        read(folder)


def test_the_newest_archive_must_be_the_one_that_the_ledger_names(folder: Path) -> None:
    (folder / archive_name(POOL, 6, 9, digest_at(9))).unlink()
    write(folder, 6, 9, digest="f" * 32)
    with pytest.raises(LedgerUnusable, check=coded("archive_missing")):
        read(folder)


@pytest.mark.parametrize("damage", [b"", b"no gzip", gzip.compress(b"EFLEDGER1\n", mtime=0)])
def test_a_damaged_file_is_named(folder: Path, damage: bytes) -> None:
    file = folder / archive_name(POOL, 4, 5, digest_at(5))
    file.write_bytes(damage)
    with pytest.raises(LedgerUnusable, match=file.name, check=coded("archive_changed")):
        read(folder)


def test_each_changed_byte_is_found_or_harmless(folder: Path) -> None:
    file = folder / archive_name(POOL, 4, 5, digest_at(5))
    data = file.read_bytes()
    num_found = 0
    for position in range(len(data)):
        file.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        try:
            assert read(folder) == list(range(1, 10))  # the header's time, say
        except LedgerUnusable as error:
            num_found += error.code == "archive_changed"
    assert num_found > len(data) - 12
