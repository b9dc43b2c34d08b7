"""Settings of the executor, from its environment and its machine."""

import os
from pathlib import Path

import pytest

from elasticflow.services.executor.node_identity import node_specification_of
from elasticflow.services.executor.processes.worker_isolation import NOT_ISOLATED
from elasticflow.services.executor.settings import ExecutorSettings, network_interfaces, num_cores, num_sockets
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.runtime.process import local_hardware
from elasticflow.shared.runtime.process.local_hardware import LocalGpu
from elasticflow.shared.runtime.process.nats_access import reachable_host

LOCAL = "nats://token@127.0.0.1:4222"


def read(
    environment: dict[str, str],
    *,
    num_gpus: int = 0,
    gpus: tuple[LocalGpu, ...] = (),
    sockets: int = 2,
    memory_bytes: int = 1 << 30,
    nats_url: str = LOCAL,
) -> ExecutorSettings:
    """gpus: those of the machine; num_gpus: so many of one type instead."""
    return ExecutorSettings.from_environment(
        nats_url,
        environment,
        discovered_gpus=lambda _: gpus or tuple(LocalGpu(str(index), "H100") for index in range(num_gpus)),
        discovered_sockets=lambda: sockets,
        discovered_memory=lambda: memory_bytes,
        discovered_interfaces=lambda: ["lo", "ib0"],
    )


def test_without_gpus_the_cores_become_cpu_slots() -> None:
    settings = read({"EF_NODE_ID": "n"})
    assert (settings.device, settings.num_gpus, settings.advertise_host) == ("cpu", num_cores(), "127.0.0.1")
    assert settings.cpu_share == pytest.approx(0.8)
    assert read({"EF_SLOTS": "4"}).cpu_share == pytest.approx(min(1.0, 0.8 * num_cores() / 4))


def test_each_gpu_is_one_slot() -> None:
    settings = read({}, num_gpus=8)
    assert (settings.device, settings.num_gpus, settings.cpu_share) == ("cuda", 8, 1.0)
    assert read({"EF_SLOTS": "2"}, num_gpus=8).num_gpus == 2
    assert read({"EF_DEVICE": "cpu", "EF_SLOTS": "3"}, num_gpus=8).device == "cpu"


def test_more_slots_than_gpus_share_each_of_them_equally() -> None:
    settings = read({"EF_SLOTS": "4"}, gpus=(LocalGpu("0", "H100", 80), LocalGpu("GPU-b", "H100", 81)))
    assert settings.gpu_names == ("0", "0", "GPU-b", "GPU-b")
    assert (settings.num_gpus, settings.gpu_type, settings.gpu_memory_bytes) == (4, "H100-1of2", 40)
    with pytest.raises(
        BadSettings, match="EF_SLOTS=3: must be at most 2, the number of GPUs here, or a multiple of it"
    ):
        read({"EF_SLOTS": "3"}, num_gpus=2)


def test_each_slot_knows_the_device_and_the_uuid_of_its_gpu() -> None:
    gpus = (LocalGpu("0", "H100", 80, "GPU-a", 0, "nvidia3"), LocalGpu("1", "H100", 80, "GPU-b", 1, "nvidia0"))
    settings = read({"EF_SLOTS": "4"}, gpus=gpus)
    assert settings.gpu_devices == ("nvidia3", "nvidia3", "nvidia0", "nvidia0")
    assert settings.gpu_uuids == ("GPU-a", "GPU-a", "GPU-b", "GPU-b")


def test_a_node_that_requires_isolation_separates_the_gpus_of_its_jobs() -> None:
    assert read({}).shown_gpus == "executor"
    assert read({"EF_ISOLATION": "required"}).shown_gpus == "job"
    assert read({"EF_ISOLATION": "required", "EF_SHOWN_GPUS": "executor"}).shown_gpus == "executor"
    assert read({"EF_SHOWN_GPUS": "job"}).shown_gpus == "job"


def test_gpus_have_the_type_and_the_least_memory_that_the_driver_reports() -> None:
    gpus = (LocalGpu("0", "H100", 80), LocalGpu("1", "H100", 79))
    settings = read({}, gpus=gpus)
    assert (settings.gpu_type, settings.gpu_memory_bytes) == ("H100", 79)
    given = read({"EF_GPU_TYPE": "H100-SXM", "EF_GPU_MEMORY_BYTES": "70"}, gpus=gpus)
    assert (given.gpu_type, given.gpu_memory_bytes) == ("H100-SXM", 70)
    with pytest.raises(BadSettings, match=r"EF_GPU_TYPE='H 100': must be .*EF_GPU_MEMORY_BYTES"):
        read({"EF_GPU_TYPE": "H 100", "EF_GPU_MEMORY_BYTES": "-1"}, gpus=gpus)


@pytest.mark.parametrize(
    ("share", "gpu_type"),
    [("1", "cpu-1"), ("4", "cpu-1"), ("0.25", "cpu-0.25"), ("0.26666", "cpu-0.267"), ("0.2667", "cpu-0.267")],
)
def test_cpu_slots_have_the_type_of_their_share(share: str, gpu_type: str) -> None:
    settings = read({"EF_DEVICE": "cpu", "EF_CPU_SHARE": share}, num_gpus=8)
    assert settings.gpu_type == gpu_type


def test_cpu_slots_have_equal_parts_of_the_memory() -> None:
    environment = {"EF_DEVICE": "cpu", "EF_SLOTS": "3"}
    assert read(environment, memory_bytes=100).gpu_memory_bytes == 33
    assert read(environment | {"EF_GPU_MEMORY_BYTES": "40"}, memory_bytes=100).gpu_memory_bytes == 40


@pytest.mark.parametrize(
    ("named", "unknown"),
    [("9", "9"), ("0, 9", "9"), ("GPU-z,0", "GPU-z"), ("0,1", ""), ("-1", ""), ("", ""), ("1,-1", "")],
)
def test_a_gpu_that_the_machine_does_not_have_is_named(
    monkeypatch: pytest.MonkeyPatch, named: str, unknown: str
) -> None:
    installed = tuple(LocalGpu(str(index), "H100", 80, f"GPU-{index}", index) for index in range(2))
    monkeypatch.setattr(local_hardware, "installed_gpus", lambda: installed)
    environment = {"CUDA_VISIBLE_DEVICES": named}
    if not unknown:
        assert ExecutorSettings.from_environment(LOCAL, environment).num_gpus > 0
        return
    with pytest.raises(BadSettings, match=f"={named}: there is no GPU {unknown} here; name some of 0, 1: see"):
        ExecutorSettings.from_environment(LOCAL, environment)
    monkeypatch.setattr(local_hardware, "installed_gpus", tuple)
    assert ExecutorSettings.from_environment(LOCAL, environment).device == "cpu", "a machine without a driver"


def test_gpus_of_two_types_are_not_one_node() -> None:
    gpus = (LocalGpu("0", "H100"), LocalGpu("GPU-a", "V100"), LocalGpu("2", "H100"))
    with pytest.raises(BadSettings) as raised:
        read({"EF_NODE_ID": "n"}, gpus=gpus)
    assert raised.value.problems == (
        "CUDA_VISIBLE_DEVICES: a node has GPUs of one type, and these are H100, V100; start one executor with "
        "CUDA_VISIBLE_DEVICES=0,2 EF_NODE_ID=n-H100, another with CUDA_VISIBLE_DEVICES=GPU-a EF_NODE_ID=n-V100",
    )
    assert read({"EF_SLOTS": "1"}, gpus=gpus).gpu_type == "H100", "it uses the first one only"
    assert read({"EF_GPU_TYPE": "any"}, gpus=gpus).gpu_type == "any"


def test_each_gpu_has_a_warm_worker_and_cpu_slots_only_by_setting() -> None:
    assert (read({}, num_gpus=8).warm_workers, read({"EF_SLOTS": "4"}).warm_workers) == (8, 0)
    assert read({"EF_WARM_WORKERS": "2"}, num_gpus=8).warm_workers == 2
    assert read({"EF_SLOTS": "4", "EF_WARM_WORKERS": "4"}).warm_workers == 4
    with pytest.raises(BadSettings, match="EF_WARM_WORKERS"):
        read({"EF_SLOTS": "4", "EF_WARM_WORKERS": "5"})


def test_the_end_of_the_node_is_set_or_that_of_the_allocation_of_slurm() -> None:
    assert read({}).until_s is None
    assert read({"SLURM_JOB_END_TIME": "1800000000"}).until_s == 1_800_000_000.0
    assert read({"SLURM_JOB_END_TIME": "1800000000", "EF_NODE_UNTIL": "1700000000.5"}).until_s == 1_700_000_000.5
    with pytest.raises(BadSettings, match="EF_NODE_UNTIL"):
        read({"EF_NODE_UNTIL": "tomorrow"})


def test_what_announces_its_end_is_a_cloud_slurm_or_a_file() -> None:
    assert (read({}).until_notice, read({}).notice_address) == ("", "")
    assert read({"EF_UNTIL_NOTICE": "aws", "EF_NOTICE_ADDRESS": "http://[fd00:ec2::254]"}).until_notice == "aws"
    assert read({"EF_UNTIL_NOTICE": "file:/run/end"}).until_notice == "file:/run/end"
    assert read({"EF_UNTIL_NOTICE": "file:end"}).until_notice == f"file:{Path('end').absolute()}"
    for wrong in ("file", "file:", "gce", "/run/end"):
        with pytest.raises(BadSettings, match="choose one of aws, gcp, azure, slurm and file:PATH"):
            read({"EF_UNTIL_NOTICE": wrong})
    with pytest.raises(BadSettings, match=r"EF_NOTICE_ADDRESS.*http://169\.254\.169\.254"):
        read({"EF_UNTIL_NOTICE": "aws", "EF_NOTICE_ADDRESS": "169.254.169.254"})


def test_an_end_that_slurm_moves_is_asked_for_and_not_taken_from_the_start() -> None:
    assert read({"SLURM_JOB_END_TIME": "1800000000", "EF_UNTIL_NOTICE": "slurm"}).until_s is None
    assert read({"SLURM_JOB_END_TIME": "1800000000", "EF_UNTIL_NOTICE": "aws"}).until_s == 1_800_000_000.0
    given = {"SLURM_JOB_END_TIME": "1800000000", "EF_UNTIL_NOTICE": "slurm", "EF_NODE_UNTIL": "1700000000"}
    assert read(given).until_s == 1_700_000_000.0


def test_sockets_are_detected_if_gpus_are_spread_evenly_and_else_set() -> None:
    assert (read({}, num_gpus=8).sockets, read({}, num_gpus=8).rack) == (2, "")
    assert read({}, num_gpus=8, sockets=3).sockets == 1
    assert read({"EF_SLOTS": "4"}, num_gpus=8).sockets == 1  # on which socket they are is unknown
    assert read({"CUDA_VISIBLE_DEVICES": "0,1"}, num_gpus=2).sockets == 1
    assert read({"EF_SLOTS": "4"}).sockets == 1  # a CPU slot is bound to no core
    explicit = read({"EF_SOCKETS": "4", "EF_RACK": "r7"}, num_gpus=8)
    assert (explicit.sockets, explicit.rack) == (4, "r7")
    assert read({"EF_RACK": "hall-1/row-2/rack-3"}).rack == "hall-1/row-2/rack-3"
    with pytest.raises(BadSettings, match=r"EF_SOCKETS.*EF_RACK"):
        read({"EF_SOCKETS": "0", "EF_RACK": "a b"})


@pytest.mark.parametrize(
    ("packages", "numa_nodes", "sockets"),
    [
        (("0", "0", "1", "1"), ("0-1", "2-3"), 2),
        (("0", "0", "1", "1"), ("0", "1", "2", "3"), 2),
        (("0", "1", "2", "3"), ("0-3",), 1),
        (("0", "0", "0", "0"), ("0-3", ""), 1),
        ((), (), 1),
    ],
)
def test_sockets_of_a_machine(
    tmp_path: Path, packages: tuple[str, ...], numa_nodes: tuple[str, ...], sockets: int
) -> None:
    for number, package in enumerate(packages):
        write(tmp_path / f"cpu/cpu{number}/topology/physical_package_id", package)
    for number, cpus in enumerate(numa_nodes):
        write(tmp_path / f"node/node{number}/cpulist", cpus)
    assert num_sockets(tmp_path) == sockets


def write(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"{line}\n")


def test_every_wrong_variable_is_named() -> None:
    wrong = {"EF_NODE_ID": "a.b", "EF_DEVICE": "cuda", "EF_SLOTS": "0", "EF_CPU_SHARE": "much"}
    with pytest.raises(BadSettings) as raised:
        read(wrong)
    assert [problem.split("=")[0] for problem in raised.value.problems] == [
        "EF_DEVICE",
        "EF_SLOTS",
        "EF_NODE_ID",
        "EF_CPU_SHARE",
    ]


def test_more_slots_than_gpus_are_rejected() -> None:
    with pytest.raises(BadSettings, match="EF_SLOTS"):
        read({"EF_SLOTS": "9"}, num_gpus=8)


def test_the_default_node_id_is_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-7.cluster.local")
    assert read({}).node_id == "gpu-7-cluster-local"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("nats://localhost:4222", "127.0.0.1"),
        ("127.0.0.1:4222", "127.0.0.1"),
        ("tls://user:secret@[::1]:4222,nats://elsewhere:4222", "127.0.0.1"),
    ],
)
def test_if_nats_runs_here_the_host_is_the_loopback(url: str, host: str) -> None:
    assert reachable_host(url) == host


def test_else_it_is_the_host_name_or_its_address_on_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-7")
    assert reachable_host("nats://no-such-host.invalid:4222") == "gpu-7"
    assert read({"EF_ADVERTISE_HOST": "10.1.1.1"}, nats_url="nats://far:4222").advertise_host == "10.1.1.1"


def test_an_unknown_interface_for_data_is_refused_with_those_of_the_machine() -> None:
    assert read({}).data_interface == ""
    assert read({"EF_DATA_INTERFACE": "ib0"}).data_interface == "ib0"
    with pytest.raises(BadSettings, match=r"EF_DATA_INTERFACE=ib1: .* no such network interface; name one of lo, ib0"):
        read({"EF_DATA_INTERFACE": "ib1"})
    assert "lo" in network_interfaces()


@pytest.mark.gpu
def test_an_executor_has_the_gpus_that_torch_counts() -> None:
    import torch  # slow, and only this test needs it

    environment = {name: value for name, value in os.environ.items() if not name.startswith("EF_")}
    settings = ExecutorSettings.from_environment(LOCAL, environment)
    assert (settings.device, settings.num_gpus) == ("cuda", torch.cuda.device_count())


def test_workers_are_isolated_where_the_node_has_a_key_of_its_own() -> None:
    assert read({}).isolation == "none"
    assert read({"EF_NATS_CREDS": "/keys/node.seed"}).isolation == "auto"
    assert read({"EF_ISOLATION": "required"}).isolation == "required"
    with pytest.raises(BadSettings, match="EF_ISOLATION='some': choose one of none, auto, required"):
        read({"EF_ISOLATION": "some"})


def test_data_folders_are_absolute() -> None:
    assert read({"EF_DATA_FOLDERS": "/data:/models"}).data_folders == ("/data", "/models")
    with pytest.raises(BadSettings, match="EF_DATA_FOLDERS: data is no absolute path"):
        read({"EF_DATA_FOLDERS": "data"})


def test_the_memory_of_jobs_is_limited_to_a_cpu_slots_share_and_on_gpus_only_by_setting() -> None:
    assert read({"EF_JOB_MEMORY_BYTES": "1000"}).job_memory_bytes == 1000
    assert read({"EF_DEVICE": "cpu", "EF_JOB_MEMORY_BYTES": "0"}).job_memory_bytes == 0
    assert read({"EF_DEVICE": "cpu", "EF_SLOTS": "4"}, memory_bytes=2**35).job_memory_bytes == 2**33
    assert read({"EF_DEVICE": "cpu", "EF_SLOTS": "64"}, memory_bytes=2**35).job_memory_bytes == 2**30, (
        "libraries need some"
    )
    assert read({"EF_DEVICE": "cpu", "EF_SLOTS": "2"}, memory_bytes=2**29).job_memory_bytes == 2**29, "there is no more"
    assert read({}, num_gpus=2).job_memory_bytes == 0


@pytest.mark.parametrize("store", ["", "s3://bucket/folder"])
def test_the_policy_of_a_node_knows_whether_checkpoints_have_copies(store: str, tmp_path: Path) -> None:
    settings = read({"EF_CHECKPOINT_STORE": store})
    assert node_specification_of(settings, tmp_path, NOT_ISOLATED, "").copies_checkpoints is bool(store)


def test_artifacts_go_to_a_folder_by_uri_without_a_password() -> None:
    assert (read({}).artifact_store, read({}).checkpoint_store) == ("", "")
    assert read({"EF_CHECKPOINT_STORE": "s3://bucket/folder"}).checkpoint_store == "s3://bucket/folder"
    assert read({"EF_ARTIFACT_STORE": "s3://bucket/folder"}).artifact_store == "s3://bucket/folder"
    for wrong, said in (("/mnt/store", "it is no URI of a folder"), ("sftp://me:word@host/x", "it has a password")):
        for name in ("EF_ARTIFACT_STORE", "EF_CHECKPOINT_STORE"):
            with pytest.raises(BadSettings, match=f"{name}: {said}"):
                read({name: wrong})
