"""Secrets are sealed for the executors of a pool and for one tenant."""

import stat
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.codec import decode, encode, validate
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.job_environment import SealedSecret
from elasticflow.shared.runtime.process.secret_sealing import SecretKeys, SecretsUnusable, kept_key, seal
from testbed.histories import spec

VALUE = "a-very-secret-value"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "secrets.key"


def test_executors_read_what_a_client_has_sealed(file: Path) -> None:
    public_key = kept_key(file)
    secret = seal(public_key, "lab", "TOKEN", VALUE)
    assert SecretKeys.read(file).open("lab", [secret]) == {"TOKEN": VALUE}
    assert VALUE not in repr(secret)
    assert VALUE.encode() not in b64decode(secret.sealed)
    assert kept_key(file) == public_key, "a key is made once"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert public_key not in file.read_text()


def test_a_secret_is_worthless_to_another_tenant_and_under_another_name(file: Path) -> None:
    secret = seal(kept_key(file), "lab", "TOKEN", VALUE)
    with pytest.raises(SecretsUnusable, match="its secret TOKEN was not sealed by tenant thief for the key"):
        SecretKeys.read(file).open("thief", [secret])
    with pytest.raises(SecretsUnusable, match="its secret OTHER was not sealed"):
        SecretKeys.read(file).open("lab", [replace(secret, name="OTHER")])


@pytest.mark.parametrize("sealed", ["", "AAAA", b64encode(bytes(100)).decode()])
def test_what_is_no_secret_is_refused(file: Path, sealed: str) -> None:
    kept_key(file)
    with pytest.raises(SecretsUnusable, match="submit the job again"):
        SecretKeys.read(file).open("lab", [SealedSecret(name="TOKEN", sealed=sealed)])


def test_a_changed_secret_is_refused(file: Path) -> None:
    data = bytearray(b64decode(seal(kept_key(file), "lab", "TOKEN", VALUE).sealed))
    data[-1] ^= 1
    with pytest.raises(SecretsUnusable):
        SecretKeys.read(file).open("lab", [SealedSecret(name="TOKEN", sealed=b64encode(data).decode())])


def test_an_older_key_opens_older_secrets(file: Path, tmp_path: Path) -> None:
    old = seal(kept_key(file), "lab", "TOKEN", VALUE)
    newer = tmp_path / "newer.key"
    public_key = kept_key(newer)
    with newer.open("a") as keys:
        keys.write(file.read_text())
    keys = SecretKeys.read(newer)
    assert keys.public_key == public_key
    assert keys.open("lab", [old, seal(public_key, "lab", "B", "2")]) == {"TOKEN": VALUE, "B": "2"}


def test_a_node_without_a_key_says_so(file: Path) -> None:
    secret = seal(kept_key(file), "lab", "TOKEN", VALUE)
    assert SecretKeys.read(None).open("lab", []) == {}
    with pytest.raises(SecretsUnusable, match="TOKEN cannot be opened: this node has no EF_SECRETS_KEY"):
        SecretKeys.read(None).open("lab", [secret])


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [("", 0o600, "holds no key"), ("no key\n", 0o600, "cannot be read as keys"), ("", 0o644, "chmod 600")],
)
def test_a_wrong_key_file_is_refused(file: Path, content: str, mode: int, said: str) -> None:
    file.parent.mkdir()
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(BadSettings, match=f"EF_SECRETS_KEY={file}: .*{said}"):
        SecretKeys.read(file)


def test_a_specification_has_sealed_secrets_and_equal_names_are_equal(file: Path) -> None:
    key = kept_key(file)
    job, again = (spec(secrets=(seal(key, "lab", "TOKEN", VALUE),)) for _ in range(2))
    assert job.secrets[0].sealed != again.secrets[0].sealed
    assert job == again, "a repeated submission is the same job"
    assert job != spec(secrets=(seal(key, "lab", "OTHER", VALUE),))
    command = SubmitJob(job_id="a", tenant="lab", spec=job)
    data = encode(command, id="1", recorded_at_s=0.0)
    assert VALUE.encode() not in data
    decoded = decode(data).message
    assert isinstance(decoded, SubmitJob)
    assert SecretKeys.read(file).open("lab", decoded.spec.secrets) == {"TOKEN": VALUE}


def test_a_secret_named_like_a_variable_of_the_pool_is_refused() -> None:
    secrets = (SealedSecret(name="CUDA_VISIBLE_DEVICES", sealed=""),)
    (problem,) = validate(SubmitJob(job_id="a", tenant="lab", spec=spec(secrets=secrets)))
    assert problem.startswith("spec.secrets: must be without CUDA_VISIBLE_DEVICES, which the pool sets")
