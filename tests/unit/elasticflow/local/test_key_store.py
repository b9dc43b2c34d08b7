"""Keys in a folder: what is secret, what is not, and what the accounts say."""

import stat
from pathlib import Path

import pytest

from elasticflow.errors import KeysUnusable
from elasticflow.local import key_store
from elasticflow.shared.runtime.bus.nats.permissions import Role
from tests.support.error_codes import coded

POOL = "pool-a"


def test_a_new_folder_has_keys_for_the_operator_and_the_services(tmp_path: Path) -> None:
    store = key_store.create(tmp_path / "keys", POOL)
    assert [(key.role, key.name) for key in store.keys] == [(Role.OPERATOR, "operator"), (Role.SERVICE, "services")]
    assert key_store.read(tmp_path / "keys") == store


def test_only_their_owner_reads_the_files(tmp_path: Path) -> None:
    store = key_store.create(tmp_path / "keys", POOL).add(Role.TENANT, "alice")
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in store.folder.iterdir()} == {0o600}


def test_the_accounts_hold_no_secret(tmp_path: Path) -> None:
    store = key_store.create(tmp_path / "keys", POOL).add(Role.TENANT, "alice")
    accounts = store.accounts_file.read_text()
    for key in store.keys:
        seed = store.seed_file(key.role, key.name).read_text()
        assert seed.startswith("SU")
        assert seed not in accounts
        assert key.nkey in accounts


def test_a_revoked_key_is_in_no_account(tmp_path: Path) -> None:
    store = key_store.create(tmp_path / "keys", POOL).add(Role.TENANT, "alice").add(Role.NODE, "n1")
    revoked = store.revoke(Role.TENANT, "alice")
    assert "alice" not in revoked.accounts_file.read_text()
    assert "node-n1" in revoked.accounts_file.read_text()
    assert not store.seed_file(Role.TENANT, "alice").exists()
    assert key_store.read(store.folder) == revoked


def test_a_name_has_one_key_at_a_time(tmp_path: Path) -> None:
    store = key_store.create(tmp_path / "keys", POOL).add(Role.TENANT, "alice")
    with pytest.raises(
        KeysUnusable, match="there is a key for tenant alice; revoke it first", check=coded("unusable_keys")
    ):
        store.add(Role.TENANT, "alice")
    renewed = store.revoke(Role.TENANT, "alice").add(Role.TENANT, "alice")
    assert {key.nkey for key in renewed.keys} != {key.nkey for key in store.keys}


@pytest.mark.parametrize("name", ["", "*", "a.b", ">", "a b", "../a", 'a"', "x" * 65])
def test_a_name_is_one_token_of_a_subject(tmp_path: Path, name: str) -> None:
    store = key_store.create(tmp_path / "keys", POOL)
    with pytest.raises(KeysUnusable, match="is no name", check=coded("unusable_keys")):
        store.add(Role.TENANT, name)
    assert key_store.read(store.folder) == store


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeysUnusable, match=f"eflow keys init --keys {tmp_path}", check=coded("no_keys")):
        key_store.read(tmp_path)
    store = key_store.create(tmp_path, POOL)
    with pytest.raises(KeysUnusable, match="it has keys already", check=coded("unusable_keys")):
        key_store.create(tmp_path, POOL)
    with pytest.raises(KeysUnusable, match="there is no key for tenant bob", check=coded("unusable_keys")):
        store.revoke(Role.TENANT, "bob")
    (tmp_path / "keys.json").write_text("{}")
    with pytest.raises(KeysUnusable, match="is damaged", check=coded("unusable_keys")):
        key_store.read(tmp_path)
