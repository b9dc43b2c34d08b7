"""Certificates for 127.0.0.1, made with the openssl command."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Certificates:
    """An authority, and a certificate that it has signed with its key."""

    ca: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, name: str, *, days: int = 2) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command")
    made = Certificates(folder / f"{name}-ca.pem", folder / f"{name}.pem", folder / f"{name}.key")
    ca_key, request, extensions = (folder / f"{name}{end}" for end in ("-ca.key", ".csr", ".ext"))
    extensions.write_text("subjectAltName = IP:127.0.0.1\nextendedKeyUsage = serverAuth, clientAuth\n")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    lasting = ("-days", str(days))
    authority = ("-subj", f"/CN={name} authority", *lasting, "-keyout", ca_key, "-out", made.ca)
    _openssl("req", "-x509", *new_key, *authority)
    _openssl("req", *new_key, "-subj", f"/CN={name}", "-keyout", made.key, "-out", request)
    signed = ("-CA", made.ca, "-CAkey", ca_key, "-CAcreateserial", "-extfile", extensions)
    _openssl("x509", "-req", "-in", request, *signed, *lasting, "-out", made.certificate)
    return made


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
