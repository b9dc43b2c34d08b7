"""The commands and variables of the rendered pods make a pool, with a token and with keys, without Kubernetes."""

import asyncio
import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from elasticflow.local import key_store
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.events import NodeJoined, NodeLost
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.permissions import Role
from elasticflow.shared.runtime.process.files import private_bytes
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from elasticflow.shared.runtime.process.secret_sealing import kept_key
from testbed.planned_ledger import POOL, Ledger
from testbed.real_pool import eventually
from tests.helm.chart import CHART, Chart
from tests.helm.rendered_pods import TOKEN, RenderedPods, nats, nats_configuration, unused_port
from tests.support.certificates import make_certificates

SERVICES = [f"elasticflow-{name}" for name in ("admission", "allocator", "placement", "monitor")]
NODE = "elasticflow-node"


async def test_with_a_token_they_make_a_pool_and_outlive_its_server(chart: Chart, tmp_path: Path) -> None:
    objects = chart.objects("--values", str(CHART / "examples/cpu.yaml"), "--set", f"pool={POOL}")
    (shown,) = [each for each in objects if each["metadata"]["name"] == "nats-values"]
    port = unused_port()
    of_chart = RenderedPods(objects, tmp_path, port)
    start = of_chart.started
    configuration_of_nats = nats_configuration(json.loads(shown["data"]["values"]), tmp_path / "store", port)
    with nats(configuration_of_nats, tmp_path) as server, start(NODE, "initContainers") as waiting:
        with start("elasticflow-configuration") as configuration:
            assert await asyncio.to_thread(configuration.wait, 120) == 0
        assert await asyncio.to_thread(waiting.wait, 120) == 0, "the files are there"
        bus = await connect_nats(f"nats://{TOKEN}@127.0.0.1:{port}", name="test")
        ledger, heartbeats = Ledger(bus), await bus.subscribe(subjects.every_node(POOL))
        with start(SERVICES[0]), start(SERVICES[1]), start(SERVICES[2]), start(SERVICES[3]):
            with start(NODE) as node:
                joined = await ledger.until_received(NodeJoined)
                assert (joined.node_id, joined.device, joined.num_gpus) == (f"{NODE}-0", "cpu", 2)
                async with asyncio.timeout(120):
                    for _ in range(3):  # with the third, it knows that it has joined
                        await anext(aiter(heartbeats))
                node.terminate()
                assert (await ledger.until_received(NodeLost)).reason == "left"
            await bus.close()
            with start(NODE):
                for name in (*SERVICES, NODE):
                    await eventually(partial(of_chart.answers, name, "/healthz", 200), f"{name} is ready")
                server.kill()  # Kubernetes then finds each pod alive, and not ready
                for name in (*SERVICES, NODE):
                    await eventually(partial(of_chart.answers, name, "/healthz", 503), f"{name} misses NATS")
                    assert of_chart.answers(name, "/metrics", 200)


async def test_with_keys_they_make_a_pool(chart: Chart, tmp_path: Path) -> None:
    port = unused_port()
    values = {
        "pool": POOL,
        "natsServers": [f"127.0.0.1:{port}"],
        "streamReplicas": 1,
        "nodes": {"gpus": 0, "slots": 2, "env": None},
    }
    (tmp_path / "values.json").write_text(json.dumps(values))
    objects = chart.objects("--values", str(CHART / "examples/keys.yaml"), "--values", str(tmp_path / "values.json"))
    of_chart = RenderedPods(objects, tmp_path, port)
    certificates = make_certificates(tmp_path, "nats")
    keys = key_store.create(tmp_path / "eflow-keys", POOL).add(Role.NODE, f"{NODE}-0")
    assert kept_key(keys.secrets_file)
    for secret, files in {
        "elasticflow-services": ["service-services.seed"],
        "elasticflow-operator": ["operator-operator.seed"],
        "elasticflow-nodes": [f"node-{NODE}-0.seed", "workers.secret", "secrets.key"],
    }.items():
        for name in files:
            shutil.copy(keys.folder / name, of_chart.folder_of(secret) / name)
            (of_chart.folder_of(secret) / name).chmod(0o440)
        shutil.copy(certificates.ca, of_chart.folder_of(secret) / "ca.pem")
    server = (
        f'listen: "127.0.0.1:{port}"\nmax_payload: 4259840\ninclude "eflow-keys/{keys.accounts_file.name}"\n'
        f'jetstream {{ store_dir: "{tmp_path}/store", sync_interval: always, max_file_store: 10GB }}\n'
        f'tls {{ cert_file: "{certificates.certificate}", key_file: "{certificates.key}", handshake_first: auto }}\n'
    )
    with nats(server, tmp_path):
        for name in ("elasticflow-configuration", *SERVICES, NODE):
            of_chart.prepare(name)
        with of_chart.started("elasticflow-configuration") as configuration:
            assert await asyncio.to_thread(configuration.wait, 120) == 0
        operator = NatsAccess(ca=certificates.ca, credentials=keys.seed_file(Role.OPERATOR, "operator"))
        bus = await connect_nats(f"nats://127.0.0.1:{port}", name="test", access=operator)
        start = of_chart.started
        with start(SERVICES[0]), start(SERVICES[1]), start(SERVICES[2]), start(SERVICES[3]), start(NODE):
            joined = await Ledger(bus).until_received(NodeJoined)
            assert joined.node_id == f"{NODE}-0"
            for name in (*SERVICES, NODE):
                await eventually(partial(of_chart.answers, name, "/healthz", 200), f"{name} is ready")
        await bus.close()


def test_keys_are_copied_as_processes_accept_them(chart: Chart, tmp_path: Path) -> None:
    of_chart = RenderedPods(chart.objects("--values", str(CHART / "examples/keys.yaml")), tmp_path, unused_port())
    volume = of_chart.folder_of("elasticflow-nodes")
    for name in (f"node-{NODE}-0.seed", f"node-{NODE}-1.seed", "ca.pem", "workers.secret"):
        (volume / name).write_text(name)
        (volume / name).chmod(0o440)
    of_chart.prepare(NODE)
    own = of_chart.folder_of(f"{NODE}-own-keys")
    assert {file.name for file in own.iterdir()} == {f"node-{NODE}-0.seed", "ca.pem", "workers.secret"}
    assert private_bytes("EF_NATS_CREDS", own / f"node-{NODE}-0.seed")
    with pytest.raises(BadSettings):
        private_bytes("EF_NATS_CREDS", volume / f"node-{NODE}-0.seed")
