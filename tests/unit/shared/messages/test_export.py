"""A truncated, changed or foreign export is detected, with the place."""

import io

import pytest

from elasticflow.shared.messages.export import MAGIC, BadExport, ExportWriter, LedgerRecord, read_export

RECORDS = tuple(
    LedgerRecord(
        sequence=sequence,
        subject=f"ef.ledger.default.job.j{sequence}",
        message_id=f"id-{sequence}",
        stored_at_s=1_000.5 + sequence,
        data=bytes([sequence]) * sequence,
    )
    for sequence in range(1, 6)
)


def exported(records: tuple[LedgerRecord, ...], *, finish: bool = True) -> bytes:
    file = io.BytesIO()
    writer = ExportWriter(file)
    for record in records:
        writer.add(record)
    if finish:
        writer.finish()
    return file.getvalue()


@pytest.mark.parametrize("records", [RECORDS, ()])
def test_what_was_written_is_read(records: tuple[LedgerRecord, ...]) -> None:
    assert read_export(io.BytesIO(exported(records))) == records


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 a zip", MAGIC[:-1], b"\x00" * 64])
def test_a_foreign_file_is_no_export(data: bytes) -> None:
    with pytest.raises(BadExport, match="not an export of an ElasticFlow ledger"):
        read_export(io.BytesIO(data))


def test_a_file_without_its_end_is_cut_off() -> None:
    with pytest.raises(BadExport, match="cut off after sequence 5"):
        read_export(io.BytesIO(exported(RECORDS, finish=False)))


def test_every_cut_is_noticed() -> None:
    whole = exported(RECORDS)
    for length in range(len(MAGIC), len(whole)):
        with pytest.raises(BadExport, match=r"cut off after sequence \d"):
            read_export(io.BytesIO(whole[:length]))


def test_every_changed_byte_is_noticed() -> None:
    whole = exported(RECORDS)
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0x40
        with pytest.raises(BadExport):
            read_export(io.BytesIO(bytes(changed)))


def test_damage_is_named_by_its_place() -> None:
    whole = exported(RECORDS)
    changed = bytearray(whole)
    changed[whole.index(b"ef.ledger.default.job.j3")] ^= 1
    with pytest.raises(BadExport, match="damaged at sequence 3"):
        read_export(io.BytesIO(bytes(changed)))


def test_a_missing_message_is_noticed() -> None:
    with pytest.raises(BadExport, match="sequence 4 where 3 should be"):
        read_export(io.BytesIO(exported(RECORDS[:2] + RECORDS[3:])))


def test_nothing_may_follow_the_end() -> None:
    with pytest.raises(BadExport, match="it has bytes after its end, which follows sequence 5"):
        read_export(io.BytesIO(exported(RECORDS) + b"x"))
