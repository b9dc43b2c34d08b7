"""Jobs that attack their node: each attempt fails, and a neighbour trains to the same bits."""

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from elasticflow.client.worker_logs import LogReader
from elasticflow.sdk.packaging import package
from elasticflow.services.executor.decisions.local_events_and_actions import ArtifactsUploaded, StoreArtifacts
from elasticflow.services.executor.old_files import OldFiles
from elasticflow.services.executor.processes.artifact_uploads import ArtifactUploads
from elasticflow.services.executor.processes.job_logs import rotate
from elasticflow.services.executor.processes.launcher import Exited
from elasticflow.services.executor.processes.worker_isolation import WorkerIsolation
from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import DAY_S
from elasticflow.shared.messages.worker_protocol.forking import Isolation
from elasticflow.shared.messages.worker_protocol.from_worker import ARTIFACT_FOLDER, ExitCode, Failed, Started
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.permissions import Role
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.folder_tree import delete_folder
from elasticflow.shared.runtime.process.isolation.cgroups import MAX_OPEN_FILES, MAX_PROCESSES, WorkerCgroups
from elasticflow.shared.runtime.process.isolation.machine_check import python_folders
from elasticflow.shared.runtime.process.isolation.system_calls import filter_problem
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.hostile_attacks import (
    DAEMONS_SLEEP_S,
    MEMORY_LIMIT_BYTES,
    PRIVATE_FILE,
    Neighbour,
    attack_on,
    outcome_of,
    targets_of_attacks,
)
from testbed.planned_ledger import Ledger
from testbed.secured_pool import POOL, secured_pool
from testbed.user_code.attacks_on_node import ATTACKS, FAR_ABOVE_THE_LIMIT
from testbed.worker_nodes import Node, job_spec
from tests.support.executor_process import executor_process
from tests.support.namespaces import skip_without_namespaces
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "a-token-of-the-executor"
GROUPS = "groups"
FILES_BYTES = 64 << 20  # that a worker may keep in memory
FEW_MIB = 16  # of file systems that hold mount points only
HOSTILE_JOBS = Path(__file__).parents[2] / "testbed" / "user_code" / "hostile_jobs.py"


@pytest.fixture(scope="module")
def executor() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the executor's user, with a secret in its environment."""
    with subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"], "NATS_URL": SECRET}) as process:
        yield process
        process.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    skip_without_namespaces()
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "run.json").write_text(SECRET)
    isolation = Isolation(namespaces=True, readable=python_folders(), hidden=(str(folder),), memory_bytes=FILES_BYTES)
    (folder / GROUPS).mkdir()
    groups = WorkerCgroups(folder / GROUPS, memory_bytes=1 << 40)  # of a folder: the machine may have no real ones
    node = Node(folder, isolation=WorkerIsolation(isolation, cgroups=groups))
    await node.launcher.start()
    yield node
    await node.launcher.close()
    delete_folder(folder)  # deeper than pytest can delete: its next runs would fail at it


async def test_no_environment_holds_a_secret(node, executor):
    assert executor.poll() is None
    assert await outcome_of(node, "read_environments", SECRET) == []


async def test_no_token_file_is_readable(node):
    assert await outcome_of(node, "read_file", node.folder / "run.json") == ""


async def test_only_its_own_checkpoints_are_visible(node):
    node.checkpoints_of("another-job").mkdir(parents=True)
    (own,) = await outcome_of(node, "list_folder", node.folder / "checkpoints")
    assert own != "another-job"
    assert await outcome_of(node, "list_folder", node.folder) == ["checkpoints", "logs"]


async def test_it_writes_to_its_own_folders_only(node):
    inside = node.checkpoints_of(node.new_job_id())
    targets = [Path(__file__).parent / "x", inside / "x", "/usr/x", "/etc/x", "/proc/sys/kernel/core_pattern"]
    assert await outcome_of(node, "write_files", " ".join(map(str, targets))) == []
    assert await outcome_of(node, "write_files", str(PRIVATE_FILE)) == [str(PRIVATE_FILE)]
    assert not PRIVATE_FILE.exists()


async def test_links_and_fifos_in_its_folders_lead_its_executor_nowhere(node):
    victim, job_id = node.folder / "run.json", node.new_job_id()
    logs = node.launcher.log_file(job_id, 1, 0).parent
    planted = await outcome_of(node, "plant_links", f"{logs} {victim}", job_id=job_id)
    assert planted == ["fifo.log", "g8-r0.log", "g9-r0.log", "task.log", "task.log.1"]
    for name in planted:
        rotate(logs / name, max_bytes=0)
    rotate(node.launcher.log_file(job_id, 1, 0), max_bytes=0)
    assert victim.read_text() == SECRET
    assert not [line for line in LogReader(logs, None).new_lines(to_the_end=True) if SECRET in line]
    OldFiles(node.folder, SystemClock(), PoolState, SilentLog()).sweep(SystemClock().now_s() + 31 * DAY_S)
    assert not logs.exists()
    assert victim.read_text() == SECRET


async def test_it_signals_and_traces_no_process_outside(node, executor):
    assert await outcome_of(node, "end_process", executor.pid) is False
    assert await outcome_of(node, "trace_process", executor.pid) == []
    assert executor.poll() is None


async def test_it_gains_no_rights_by_another_user_namespace(node):
    assert await outcome_of(node, "enter_user_namespace") is False


async def test_it_makes_no_dangerous_system_call_and_can_gain_no_right(node):
    if problem := filter_problem():
        pytest.skip(problem)
    assert await outcome_of(node, "ask_the_kernel") == []


async def test_a_job_on_cpu_slots_sees_no_device_of_a_gpu(node):
    found = await outcome_of(node, "list_devices")
    assert {"null", "shm", "urandom"} < set(found)
    assert not [name for name in found if name.startswith(("nvidia", "kvm", "mem", "sd", "vd"))]


async def test_a_job_sees_the_gpus_of_its_own_slots_only(node, tmp_path):
    """Other devices stand for those of GPUs."""
    isolation = Isolation(namespaces=True, readable=python_folders(), hidden=(str(tmp_path),))
    separating = Node(tmp_path, isolation=WorkerIsolation(isolation, gpu_files=("ptmx", "fuse", "kmsg")))
    await separating.launcher.start()
    try:
        own = await outcome_of(separating, "list_devices", gpu_index=1, shown_gpus=(1,))
        both = await outcome_of(separating, "list_devices", gpu_index=1, shown_gpus=(1, 2))
    finally:
        await separating.launcher.close()
    assert {"ptmx", "fuse", "kmsg"} & set(own) == {"fuse"}
    assert {"ptmx", "fuse", "kmsg"} & set(both) == {"fuse", "kmsg"}


async def test_folders_in_each_other_stop_no_sweep_and_no_later_worker_of_their_job(node):
    job_id = node.new_job_id()
    logs = node.launcher.log_file(job_id, 1, 0).parent
    assert await outcome_of(node, "nest_folders", logs, job_id=job_id) == FAR_ABOVE_THE_LIMIT
    assert await outcome_of(node, "read_file", "/nowhere", job_id=job_id) == "", "its next worker starts"
    OldFiles(node.folder, SystemClock(), PoolState, SilentLog()).sweep(SystemClock().now_s() + 31 * DAY_S)
    assert not logs.exists()
    assert not [folder for folder in logs.parent.iterdir() if folder.is_dir()], "of no job is anything left"


async def test_forged_frames_end_their_worker_alone(node):
    hostile = job_spec("hostile_jobs:Hostile", hyperparameters={"attack": "forge_frames", "target": ""})
    workers = await node.launch(hostile, job_id=node.new_job_id())
    assert (await workers.ended())[0].signal == signal.SIGKILL
    assert await outcome_of(node, "read_file", "/nowhere") == "", "the executor goes on"


async def test_its_daemons_end_with_it(node):
    assert await outcome_of(node, "leave_daemons", DAEMONS_SLEEP_S) == 3
    assert daemons() == []


def daemons() -> list[int]:
    """Those that sleep so long, of all processes of this machine."""
    found = psutil.process_iter(["cmdline"])
    return [process.pid for process in found if str(DAEMONS_SLEEP_S) in (process.info["cmdline"] or ())]


async def test_of_links_devices_and_sparse_files_among_its_artifacts_none_is_stored(node):
    job_id = node.new_job_id()
    folder = node.checkpoints_of(job_id)
    target = f"{folder / ARTIFACT_FOLDER} {node.folder / 'run.json'}"
    planted = await outcome_of(node, "link_artifacts", target, job_id=job_id)
    assert {"fifo", "folder", "honest", "link", "sparse"} <= set(planted)
    bus, noted = MemoryBus(), list[ArtifactsUploaded]()
    await bus.ensure_pool(POOL)
    uploads = ArtifactUploads(bus, POOL, node.folder, "n1", note=noted.append, log=SilentLog())
    order = StoreArtifacts(job_id=job_id, due=1, tenant="lab", identity="", generation=1, max_bytes=1 << 20)
    uploaded = await uploads.upload(order)
    assert [file.path for file in uploaded.files] == ["honest"]
    assert uploaded.num_unstored == len(planted) - 1


async def test_a_fork_bomb_is_bounded(node):
    assert 0 < await outcome_of(node, "fork_bomb") < MAX_PROCESSES


async def test_its_open_files_are_bounded(node):
    assert 0 < await outcome_of(node, "open_files") < MAX_OPEN_FILES


async def test_each_worker_enters_a_group_of_its_own_which_is_killed_after_it(node):
    before = set((node.folder / GROUPS).iterdir())
    assert await outcome_of(node, "read_file", node.folder / "run.json") == ""
    (group,) = set((node.folder / GROUPS).iterdir()) - before
    assert (group / "cgroup.procs").read_text() == "0"
    assert (group / "pids.max").read_text() == str(MAX_PROCESSES)
    assert (group / "memory.max").read_text() == str(1 << 40)
    assert (group / "cgroup.kill").read_text() == "1"


async def test_a_memory_bomb_is_bounded(node):
    allocated_mib = await outcome_of(node, "memory_bomb", memory_limit_bytes=MEMORY_LIMIT_BYTES)
    assert 0 < allocated_mib <= 512


async def test_its_files_in_memory_are_bounded_in_size_and_number(node):
    """By one limit for all folders together: /tmp and /dev/shm each take main memory of the node."""
    written_mib = await outcome_of(node, "fill_folders_in_memory")
    assert 0 < written_mib <= (FILES_BYTES >> 20) + FEW_MIB
    num_files = await outcome_of(node, "make_empty_files")
    assert 0 < num_files < 2 * FILES_BYTES // resource.getpagesize()


async def test_the_error_of_a_job_without_memory_names_the_limit(node):
    spec = job_spec("hostile_jobs:Hostile", hyperparameters={"attack": "run_out_of_memory", "target": ""})
    workers = await node.launch(spec, job_id=node.new_job_id(), memory_limit_bytes=MEMORY_LIMIT_BYTES)
    failed = await workers.first(Failed)
    assert failed.error.startswith("MemoryError")
    assert "raise EF_JOB_MEMORY_BYTES" in failed.error
    await workers.ended()


async def test_a_connection_to_nats_without_a_key_is_refused(node, tmp_path):
    async with secured_pool(tmp_path, (Role.NODE, "n1")) as pool:
        address = pool.url.removeprefix("nats://")
        assert "Authorization Violation" in await outcome_of(node, "write_plan_without_key", address)
        async with pool.connected(Role.OPERATOR, "operator") as operator:
            assert await operator.last_sequence(POOL) == 0


async def test_no_attack_changes_a_bit_of_its_neighbours_weights(node, executor, tmp_path):
    neighbour = Neighbour(node)
    await neighbour.start()
    async with secured_pool(tmp_path, (Role.NODE, "n1")) as pool:
        address = pool.url.removeprefix("nats://")
        for attack in sorted(set(ATTACKS) - {"fill_folder", "use_up_inodes", "forge_frames"}):  # tests of their own
            job_id, before = node.new_job_id(), neighbour.iteration()
            targets = targets_of_attacks(node, job_id, pid=executor.pid, nats_address=address, secret=SECRET)
            await attack_on(node, attack, targets[attack], job_id=job_id, memory_limit_bytes=MEMORY_LIMIT_BYTES)
            while neighbour.iteration() == before:
                await neighbour.workers.next_event()
    await neighbour.release()
    await neighbour.assert_equal_to_one_alone()


@pytest.mark.parametrize("attack", ["fill_folder", "use_up_inodes"])
async def test_a_job_that_fills_the_disk_of_its_node_stops_no_neighbour(tmp_path, attack):
    """Checkpoints are skipped meanwhile. Once there is space, the neighbour ends with the weights of a run alone."""
    skip_without_namespaces()
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        isolation = Isolation(namespaces=True, readable=python_folders(), hidden=(str(disk),))
        node = Node(disk, isolation=WorkerIsolation(isolation))
        await node.launcher.start()
        try:
            neighbour, hostile = Neighbour(node), node.new_job_id()
            await neighbour.start()
            folder = node.checkpoints_of(hostile)
            assert await outcome_of(node, attack, folder, job_id=hostile) == "ENOSPC"
            full_at = neighbour.iteration()
            while neighbour.iteration() < full_at + 3:
                await neighbour.workers.next_event()
            if attack == "fill_folder":
                assert await outcome_of(node, "read_file", "/nowhere") == "", "new workers start, too"
            else:  # a worker needs a file for its log; that it has none is a fault of the node, not of its job
                without_log = await node.launch(job_spec("Points"), job_id=node.new_job_id())
                assert (await without_log.first(Exited)).code == ExitCode.DEVICE_UNUSABLE
            file = folder / "attack"
            shutil.rmtree(file) if file.is_dir() else file.unlink()
            await neighbour.release()
            await neighbour.assert_equal_to_one_alone()
        finally:
            await node.launcher.close()


async def test_a_real_executor_is_neither_signalled_nor_traced_by_its_own_job(node, nats_server, tmp_path):
    """node: skips this test where there are no namespaces."""
    code = package(f"{HOSTILE_JOBS}:Hostile")
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    await bus.put_object(streams.code_bucket(POOL), streams.code_name("lab", code.code_digest), code.archive)
    ledger = Ledger(bus)
    with executor_process(nats_server.url, POOL, tmp_path, "n1", isolation="required") as executor:
        await ledger.until_received(events.NodeJoined)
        for number, attack in enumerate(("end_process", "trace_process"), start=1):
            attacked = {"attack": attack, "target": str(executor.pid)}
            of_job = {"training_function": code.training_function, "code_digest": code.code_digest}
            await ledger.place(attack, 1, "n1:0", hyperparameters=attacked, max_iterations=1, **of_job)
            failed = await ledger.until_received(events.JobFailed, count=number)
            assert failed.error.startswith(("RuntimeError: false", "RuntimeError: []")), failed.error
        assert executor.poll() is None
        executor.send_signal(signal.SIGTERM)
        await ledger.until_received(events.NodeLost)
    await bus.close()


async def test_a_killed_worker_is_reported_by_its_signal(node):
    """Although the first process of its namespaces ends by an exit code."""
    workers = await node.launch(job_spec("Points", max_iterations=100_000), job_id=node.new_job_id())
    await workers.first(Started)
    workers.workers[0].kill()
    assert (await workers.first(Exited)).signal == 9
