"""Archives of code that no node can unpack."""

import io
import struct
import zipfile
from collections.abc import Callable
from typing import Any

from elasticflow.shared.messages.limits import MAX_ARCHIVE_BYTES, MAX_ARCHIVE_FILES

BOMB_BYTES = 8 << 20
TOO_LARGE = bytes(MAX_ARCHIVE_BYTES + 1)


def packed(write: Callable[[zipfile.ZipFile], Any], compression: int = zipfile.ZIP_STORED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as to:
        write(to)
    return data.getvalue()


def damaged_stream(compression: int) -> bytes:
    """An archive whose directory is right and whose compressed bytes are not."""
    data = bytearray(packed(lambda to: to.writestr("mine.py", "ANSWER = 42\n" * 999), compression))
    start = data.index(b"mine.py") + len("mine.py")
    end = data.index(b"PK\x01\x02")
    data[start:end] = bytes(0xFF - byte for byte in data[start:end])
    return bytes(data)


def bomb(compression: int) -> bytes:
    """A small archive that declares 10 bytes and decompresses to BOMB_BYTES."""
    data = bytearray(packed(lambda to: to.writestr("mine.py", bytes(BOMB_BYTES)), compression))
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = struct.pack("<I", 10)  # the uncompressed size in the directory
    return bytes(data)


def many_entries() -> bytes:
    """Make as many directory entries as fit, all of one stored file; the end record admits to one of them."""
    data = packed(lambda to: to.writestr("a", ""))
    start, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    count = (MAX_ARCHIVE_BYTES - len(data)) // (end - start)
    directory = data[start:end] * count
    end_record = data[end : end + 8] + struct.pack("<HHII", 1, 1, len(directory), start) + b"\0\0"
    return data[:start] + directory + end_record


HOSTILE_ARCHIVES = {
    "damaged deflate stream": damaged_stream(zipfile.ZIP_DEFLATED),
    "damaged LZMA stream": damaged_stream(zipfile.ZIP_LZMA),
    "damaged bzip2 stream": damaged_stream(zipfile.ZIP_BZIP2),
    "a file and a folder of one name": packed(lambda to: [to.writestr("a", ""), to.writestr("a/b", "")]),
    "a name that is too long": packed(lambda to: to.writestr("n" * 400, "")),
    "too many files": packed(lambda to: [to.writestr(str(n), "") for n in range(MAX_ARCHIVE_FILES + 1)]),
    "more entries than the end record says": many_entries(),
    "an LZMA bomb": bomb(zipfile.ZIP_LZMA),
    "a bzip2 bomb": bomb(zipfile.ZIP_BZIP2),
    "a deflate bomb": bomb(zipfile.ZIP_DEFLATED),
    "a cut directory": packed(lambda to: to.writestr("mine.py", ""))[:-9],
}
