"""The secret of the workers is made once, private, and found where it lies."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elasticflow.shared.runtime.process.files import keep_token, readable_by_others
from elasticflow.shared.runtime.process.secret_sealing import FILE_NAME, workers_secret_file


def test_it_is_random_private_and_made_once_by_many_at_a_time(tmp_path: Path) -> None:
    files = [tmp_path / "keys" / FILE_NAME, tmp_path / "others" / FILE_NAME]
    for file in files:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(keep_token, [file] * 8))
        assert [path.name for path in file.parent.iterdir()] == [FILE_NAME]
        assert readable_by_others(file) is None
    first, other = (file.read_text() for file in files)
    keep_token(files[0])
    assert files[0].read_text() == first != other
    assert len(bytes.fromhex(first)) == 32


def test_a_named_file_precedes_one_beside_the_key_and_one_in_the_data_folder(tmp_path: Path) -> None:
    keys, data_dir = tmp_path / "keys", tmp_path / "data"
    environment = {"EF_NATS_CREDS": str(keys / "node-a.seed"), "EF_DATA_DIR": str(data_dir)}
    assert workers_secret_file(environment) is None
    keep_token(data_dir / FILE_NAME)
    assert workers_secret_file(environment) == data_dir / FILE_NAME
    keep_token(keys / FILE_NAME)
    assert workers_secret_file(environment) == keys / FILE_NAME
    assert workers_secret_file(environment | {"EF_WORKERS_SECRET_FILE": "/absent"}) == Path("/absent")
    assert workers_secret_file(environment | {"EF_WORKERS_SECRET_FILE": ""}) == keys / FILE_NAME
