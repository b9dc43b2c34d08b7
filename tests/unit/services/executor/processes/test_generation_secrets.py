"""Executors with the same secret of the pool derive the same secrets of generations, and others do not."""

from pathlib import Path

import pytest

from elasticflow.services.executor.processes.manager import GenerationSecrets
from elasticflow.shared.errors import BadSettings


def written(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_each_generation_of_each_job_has_its_own(tmp_path: Path) -> None:
    here = GenerationSecrets.read(written(tmp_path / "here", b"a" * 64 + b"\n"))
    there = GenerationSecrets.read(written(tmp_path / "there", b"a" * 64))
    other = GenerationSecrets.read(written(tmp_path / "other", b"b" * 64))
    assert here.of("a", 1) == there.of("a", 1)
    assert len({here.of("a", 1), here.of("a", 2), here.of("b", 1), other.of("a", 1)}) == 4
    assert len(bytes.fromhex(here.of("a", 1))) == 32
    assert "aaa" not in repr(here)


def test_without_a_file_workers_prove_nothing() -> None:
    assert GenerationSecrets.read(None).of("a", 1) == ""


def test_an_unusable_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for file, problem in (
        (tmp_path / "absent", "cannot be read"),
        (written(tmp_path / "short", b"abc"), "openssl rand"),
        (written(tmp_path / "open", b"a" * 64, 0o644), "chmod 600"),
    ):
        with pytest.raises(BadSettings, match=f"EF_WORKERS_SECRET_FILE={file}: .*{problem}"):
            GenerationSecrets.read(file)


def test_a_digest_tells_secrets_apart_and_is_of_random_ones_only(tmp_path: Path) -> None:
    here, other = (GenerationSecrets.read(written(tmp_path / name, name.encode() * 64)) for name in ("a", "b"))
    assert here.digest("pool") != other.digest("pool")
    assert len(here.digest("pool")) == 16
    assert here.digest("pool") != here.digest("other pool")
    assert here.digest("pool") not in here.of("a", 1)
    assert GenerationSecrets.read(written(tmp_path / "typed", b"correct horse battery staple")).digest("pool") == ""
    assert GenerationSecrets.read(None).digest("pool") == "none"
