"""Until when the certificates of a PEM file are valid. The ssl module tells it of authorities only."""

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x17, 0x18, 0xA0  # tags of ASN.1
_FIELDS_BEFORE_VALIDITY = 3  # serial number, signature algorithm, issuer


def ends_of_validity(file: Path) -> list[datetime]:
    """In the order of the certificates. Raises OSError, ValueError."""
    return [_end_of_validity(ssl.PEM_cert_to_DER_cert(pem.decode())) for pem in _PEM.findall(file.read_bytes())]


def _end_of_validity(certificate: bytes) -> datetime:
    """RFC 5280, section 4.1. Raises ValueError."""
    try:
        ((_, signed),) = _values(certificate)
        (_, body), *_ = _values(signed)
        fields = [value for tag, value in _values(body) if tag != _VERSION]
        _, (tag, end) = _values(fields[_FIELDS_BEFORE_VALIDITY])
    except (IndexError, ValueError):
        raise ValueError("not a certificate") from None
    text = end.decode("ascii")
    if tag == _UTC_TIME:  # years 1950 to 2049
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The tag and the content of each value in DER. Raises IndexError, ValueError."""
    position = 0
    while position < len(data):
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            num_bytes = length & 0x7F
            length, position = int.from_bytes(data[position : position + num_bytes]), position + num_bytes
        if position + length > len(data):
            raise ValueError("cut")
        yield tag, data[position : position + length]
        position += length
