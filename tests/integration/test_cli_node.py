"""`eflow node` makes this machine a node of a pool, and leaves in order."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from elasticflow.shared.messages import events, subjects
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from testbed.planned_ledger import POOL, Ledger

ROOT = Path(__file__).parents[2]


class Started(NamedTuple):
    """where: options that name its pool."""

    node: subprocess.Popen[str]
    ledger: Ledger
    bus: NatsBus
    where: tuple[str, ...]


def eflow_node(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "elasticflow", "node", *arguments],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT), "EF_CPU_SHARE": "0.1", "EF_DIE_WITH_PARENT": "1"} | variables,
        stderr=subprocess.PIPE,
        text=True,
    )


@asynccontextmanager
async def started_node(server: EmbeddedServer, folder: Path, *arguments: str) -> AsyncIterator[Started]:
    """A node of the pool, with one CPU slot unless the arguments say more."""
    bus = await connect_nats(server.url, name="test")
    await bus.ensure_pool(POOL)
    ledger = Ledger(bus)
    where = ("--nats-url", server.url, "--pool", POOL)
    node = eflow_node(
        folder, *where, "--data-dir", "data", "--node-id", "a-01", "--device", "cpu", "--slots", "1", *arguments
    )
    try:
        yield Started(node, ledger, bus, where)
    finally:
        node.kill()
        node.communicate()
        await bus.close()


def eflow(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "elasticflow", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


async def test_it_joins_with_what_its_options_say_and_leaves_on_sigterm(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    options = ("--slots", "3", "--gpu-type", "small", "--rack", "hall-1/rack-7", "--until", "2h")
    async with started_node(nats_server, tmp_path, *options) as (node, ledger, bus, _):
        heartbeats = await bus.subscribe(subjects.every_node(POOL))
        joined = await ledger.until_received(events.NodeJoined)
        assert (joined.node_id, joined.device, joined.num_gpus) == ("a-01", "cpu", 3)
        assert (joined.gpu_type, joined.rack) == ("small", "hall-1/rack-7")
        assert joined.until_s is not None
        assert 7_000.0 < joined.until_s - joined.at_s <= 7_200.0
        async with asyncio.timeout(60):
            for _ in range(3):  # the first one claims its name; with the third it knows that it has joined
                await anext(aiter(heartbeats))
        node.send_signal(signal.SIGTERM)
        assert (await ledger.until_received(events.NodeLost)).reason == "left"
        assert await asyncio.to_thread(node.wait, 60) == 0
    assert (tmp_path / "data").is_dir()


async def test_its_end_is_announced_later_and_it_leaves_by_itself(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    async with started_node(nats_server, tmp_path) as (node, ledger, _, where):
        await ledger.until_received(events.NodeJoined)
        for arguments, answer in (
            (("a-01", "--at", "2h"), "a-01 ends at "),
            (("a-01", "--at", "never"), "a-01 stays"),
            (("a-01", "--at", "1s"), "a-01 ends at "),
        ):
            said = await asyncio.to_thread(eflow, tmp_path, "drain", *arguments, *where)
            assert answer in said.stdout, said
        assert (await ledger.until_received(events.NodeLost)).reason == "left"
        assert await asyncio.to_thread(node.wait, 60) == 0
        unknown = await asyncio.to_thread(eflow, tmp_path, "drain", "b-02", *where)
        assert (unknown.returncode, "no node 'b-02'" in unknown.stderr) == (1, True)


async def test_a_file_announces_its_end_takes_it_back_and_it_leaves_by_itself(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    notice = tmp_path / "end"
    async with started_node(nats_server, tmp_path, "--until-notice", "file:end") as (node, ledger, _, _where):
        assert (await ledger.until_received(events.NodeJoined)).until_s is None
        notice.write_text("4102444800\n")
        assert (await ledger.until_received(events.NodeEndNoticed)).until_s == 4_102_444_800.0
        notice.unlink()
        assert (await ledger.until_received(events.NodeEndNoticed, 2)).until_s is None
        notice.write_text("1s\n")
        assert (await ledger.until_received(events.NodeEndNoticed, 3)).until_s is not None
        assert (await ledger.until_received(events.NodeLost)).reason == "left"
        assert await asyncio.to_thread(node.wait, 60) == 0


async def test_on_a_machine_of_no_cloud_it_says_so_and_does_not_join(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    where = ("--nats-url", nats_server.url, "--pool", POOL, "--data-dir", "data", "--device", "cpu", "--slots", "1")
    node = eflow_node(tmp_path, *where, "--until-notice", "aws", EF_NOTICE_ADDRESS="http://127.0.0.1:1")
    _, stderr = await asyncio.to_thread(node.communicate, timeout=60)
    assert node.returncode == 2
    assert "no EC2 metadata service answers at http://127.0.0.1:1: this machine is no EC2 instance" in stderr
    assert "leave --until-notice out" in stderr
    assert await bus.last_sequence(POOL) == 0
    await bus.close()


def test_without_a_server_or_with_bad_settings_it_says_what_is_wrong(tmp_path: Path) -> None:
    for arguments, problem in (
        ((), "Missing option '--nats-url'"),
        (
            ("--nats-url", "nats://127.0.0.1:1", "--data-dir", "data", "--until-notice", "gce"),
            "choose one of aws, gcp,",
        ),
        (("--nats-url", "nats://127.0.0.1:1", "--data-dir", "data", "--rack", "hall/"), "EF_RACK"),
    ):
        node = eflow_node(tmp_path, *arguments)
        _, stderr = node.communicate(timeout=60)
        assert node.returncode == 2
        assert problem in stderr


def test_the_files_for_systemd_and_kubernetes_name_this_command_and_settings_that_exist() -> None:
    settings = "".join(
        (ROOT / path).read_text()
        for path in ("services/executor/settings.py", "shared/runtime/process/settings.py", "elasticflow/cli/up.py")
    )
    for path, command in (
        ("deploy/systemd/eflow-node.service", "/bin/eflow node"),
        ("deploy/kubernetes/nodes.yaml", "[eflow, node]"),
    ):
        text = (ROOT / path).read_text()
        assert command in text
        assert all(name in settings for name in re.findall(r"\bEF_[A-Z_]+\b", text))
