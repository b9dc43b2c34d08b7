"""Until when certificates are valid; damaged ones have one kind of error."""

import base64
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticflow.client.doctor import ends_of_validity
from tests.support.certificates import make_certificates


def pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"


def der(*values: bytes, tag: int = 0x30) -> bytes:
    content = b"".join(values)
    return bytes([tag, 0x82]) + len(content).to_bytes(2) + content


@pytest.mark.parametrize(
    ("time", "end"),
    [
        (der(b"491231235959Z", tag=0x17), datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (der(b"991231235959Z", tag=0x17), datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (der(b"20500101000000Z", tag=0x18), datetime(2050, 1, 1, tzinfo=UTC)),
    ],
)
@pytest.mark.parametrize("version", [b"", der(der(b"\2", tag=2), tag=0xA0)])
def test_both_forms_of_time(time: bytes, end: datetime, version: bytes, tmp_path: Path) -> None:
    body = der(version, der(b"\1", tag=2), der(), der(), der(time, time), der())
    file = tmp_path / "a.pem"
    file.write_bytes(b"a comment\n" + pem(der(body, der())))
    assert ends_of_validity(file) == [end]


def test_a_certificate_of_openssl(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, "ours", days=10)
    (end,) = ends_of_validity(made.certificate)
    assert 9 <= (end - datetime.fromtimestamp(made.certificate.stat().st_mtime, UTC)).days <= 10
    assert ends_of_validity(made.key) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged=st.binary(max_size=60))
def test_a_damaged_certificate_is_a_value_error(damaged: bytes, tmp_path: Path) -> None:
    file = tmp_path / "damaged.pem"
    file.write_bytes(pem(damaged))
    with pytest.raises(ValueError):
        ends_of_validity(file)
