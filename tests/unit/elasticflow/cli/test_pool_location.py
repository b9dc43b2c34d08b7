"""Where commands find a pool, which process runs it, and the environment of each node of a machine."""

import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasticflow.cli.app import app
from elasticflow.client.pool_endpoint import (
    RunFile,
    RunningProcess,
    find_endpoint,
    find_run_file,
    holder_of,
    read_run_file,
    take,
)
from elasticflow.errors import NoPoolHere
from elasticflow.local.supervisor import kept_token
from elasticflow.local.up_plan import UpPlan, node_environments
from elasticflow.shared.errors import BadSettings, CannotStart
from elasticflow.shared.runtime.process.local_hardware import memory_bytes
from tests.support.error_codes import coded


def run_file(data_dir: Path) -> RunFile:
    return RunFile(
        pid=os.getpid(),
        nats_url="nats://secret@127.0.0.1:4222",
        pool="lab",
        data_dir=str(data_dir),
        started_at_s=1.0,
        processes={"monitor": RunningProcess(pid=7, metrics_port=9090)},
    )


def test_a_run_file_is_read_back_while_its_supervisor_lives(tmp_path: Path) -> None:
    data_dir = tmp_path / ".eflow"
    lock = take(data_dir)
    run_file(data_dir).write()
    assert read_run_file(data_dir) == run_file(data_dir)
    assert stat.S_IMODE((data_dir / "run.json").stat().st_mode) == 0o600
    os.close(lock)
    assert read_run_file(data_dir) is None  # as after kill -9


def test_one_supervisor_a_folder(tmp_path: Path) -> None:
    lock = take(tmp_path)
    with pytest.raises(
        CannotStart, match=f"process {os.getpid()} already runs a pool in", check=coded("already_running")
    ):
        take(tmp_path)
    assert holder_of(tmp_path) == os.getpid()
    os.close(lock)
    assert holder_of(tmp_path) is None
    os.close(take(tmp_path))


def test_a_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CannotStart, match="Not a directory", check=coded("unusable_folder")) as refused:
        take(tmp_path / "file")
    assert str(refused.value).startswith(f"cannot keep a pool in {tmp_path / 'file'}: ")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"processes": 3}'])
def test_a_damaged_run_file_is_none(tmp_path: Path, content: str) -> None:
    lock = take(tmp_path)
    (tmp_path / "run.json").write_text(content)
    assert read_run_file(tmp_path) is None
    os.close(lock)


def test_the_nearest_pool_above_is_found(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert find_run_file(deep) is None
    lock = take(tmp_path / ".eflow")
    run_file(tmp_path / ".eflow").write()
    found = find_endpoint(environment={}, start=deep)
    assert (found.nats_url, found.pool, found.data_dir) == (
        "nats://secret@127.0.0.1:4222",
        "lab",
        tmp_path / ".eflow",
    )
    os.close(lock)


def test_a_named_server_wins_over_the_environment_and_that_over_the_folder(tmp_path: Path) -> None:
    environment = {"NATS_URL": "nats://env:1", "EF_POOL": "blue"}
    assert find_endpoint(environment=environment, start=tmp_path).nats_url == "nats://env:1"
    named = find_endpoint(nats_url="nats://named:1", pool="red", environment=environment, start=tmp_path)
    assert (named.nats_url, named.pool) == ("nats://named:1", "red")


def test_a_missing_pool_is_an_error_that_names_eflow_up(tmp_path: Path) -> None:
    with pytest.raises(NoPoolHere, match="start one with `eflow up`"):
        find_endpoint(environment={}, start=tmp_path)


@pytest.mark.parametrize("is_in_environment", [True, False])
def test_a_named_folder_without_a_pool_is_named_and_nothing_above_it(tmp_path: Path, is_in_environment: bool) -> None:
    folder = tmp_path / "my pool" / ".eflow"
    environment = {"EF_DATA_DIR": str(folder)} if is_in_environment else {}
    with pytest.raises(NoPoolHere) as missing:
        find_endpoint(data_dir=None if is_in_environment else folder, environment=environment, start=tmp_path)
    assert str(missing.value) == (
        f"no pool runs in {folder} (--data-dir or EF_DATA_DIR); start it with `eflow up --data-dir '{folder}'`, "
        "or name its server with --nats-url nats://host:4222"
    )


def test_a_token_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    token = kept_token(tmp_path)
    assert token == kept_token(tmp_path)
    assert stat.S_IMODE((tmp_path / "nats" / "token").stat().st_mode) == 0o600


def test_cpu_slots_share_the_cores_of_all_nodes() -> None:
    few, many = node_environments(1, 1, gpus=()), node_environments(2, 4, gpus=(), environment={})
    assert [node["EF_NODE_ID"] for node in many] == ["node-0", "node-1"]
    share = sum(float(node["EF_CPU_SHARE"]) * int(node["EF_SLOTS"]) for node in many)
    assert share <= 0.81 * len(os.sched_getaffinity(0))
    assert float(few[0]["EF_CPU_SHARE"]) <= 1.0
    assert int(few[0]["EF_JOB_MEMORY_BYTES"]) == memory_bytes()
    assert int(many[0]["EF_JOB_MEMORY_BYTES"]) == max(memory_bytes() // 8, min(2**30, memory_bytes()))
    (chosen,) = node_environments(1, 1, gpus=(), environment={"EF_JOB_MEMORY_BYTES": "0"})
    assert chosen["EF_JOB_MEMORY_BYTES"] == "0"


def test_gpus_are_dealt_out_without_overlap() -> None:
    two = node_environments(2, None, gpus=("0", "1", "2", "3"))
    assert [node["CUDA_VISIBLE_DEVICES"] for node in two] == ["0,1", "2,3"]
    one = node_environments(None, None, gpus=("0", "1"))
    assert [(node["EF_SLOTS"], node["CUDA_VISIBLE_DEVICES"]) for node in one] == [("2", "0,1")]


@pytest.mark.parametrize(
    ("num_nodes", "gpus", "visible"),
    [(None, ("0",), ["0"]), (1, ("0", "1"), ["0,1"]), (2, ("0", "1", "2"), ["0", "1"])],
)
def test_slots_may_be_equal_parts_of_each_gpu(num_nodes: int | None, gpus: tuple[str, ...], visible: list[str]) -> None:
    nodes = node_environments(num_nodes, 4, gpus=gpus)
    assert [node["CUDA_VISIBLE_DEVICES"] for node in nodes] == visible
    assert {node["EF_SLOTS"] for node in nodes} == {"4"}


@pytest.mark.parametrize(("arguments", "slots"), [((), 4), (("--slots", "2"), 2)])
def test_eflow_up_takes_the_slots_of_its_environment(
    arguments: tuple[str, ...], slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[UpPlan] = []

    async def supervised(plan: UpPlan, as_json: bool) -> int:
        plans.append(plan)
        return 0

    monkeypatch.setattr("elasticflow.cli.up._supervise", supervised)
    result = CliRunner(env={"EF_SLOTS": "4"}).invoke(app, ["up", "--nodes", "0", *arguments], prog_name="eflow")
    assert (result.exit_code, [plan.slots_per_node for plan in plans]) == (0, [slots])


def test_a_node_has_fewer_gpus_than_its_part_of_them_where_it_has_fewer_slots() -> None:
    assert [node["CUDA_VISIBLE_DEVICES"] for node in node_environments(2, 1, gpus=("0", "1", "2", "3"))] == ["0", "1"]


def test_slots_that_are_no_equal_parts_of_the_gpus_are_refused() -> None:
    with pytest.raises(BadSettings, match="--slots 3: must be at most 2, the number of GPUs of each node, or a mult"):
        node_environments(1, 3, gpus=("0", "1"))


def test_more_nodes_than_gpus_are_refused() -> None:
    with pytest.raises(BadSettings, match="3 nodes are more than the 2 GPUs here"):
        node_environments(3, 1, gpus=("0", "1"))
