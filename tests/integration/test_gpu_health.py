"""An executor with an NVML of the test: GPUs that fail are in the ledger, and `eflow nodes` shows their use."""

import asyncio
from pathlib import Path

from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.events import GpuFailing
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.process.clock import SystemClock
from testbed.command_line import CommandLinePool
from testbed.fake_nvml import FakeGpu, in_place_of_pynvml, write_gpus
from testbed.planned_ledger import POOL
from testbed.real_pool import PATIENCE_S
from tests.support.executor_process import executor_process


async def test_a_failing_gpu_is_in_the_ledger_and_its_use_in_the_list_of_nodes(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    gpus, file = (
        [FakeGpu(uuid="GPU-a", utilization=80), FakeGpu(uuid="GPU-b", temperature_c=91)],
        tmp_path / "gpus.json",
    )
    write_gpus(file, *gpus)
    fake = in_place_of_pynvml(tmp_path / "nvml", file)
    fake |= {"EF_DEVICE": "cuda", "EF_WARM_WORKERS": "0", "EF_GPU_TYPE": "fake"}
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    cli = CommandLinePool(nats_server.url, bus, tmp_path, POOL)
    client = Client(bus, Endpoint(nats_url=nats_server.url, pool=POOL), tenant="lab", clock=SystemClock())
    with executor_process(nats_server.url, POOL, tmp_path / "node", "n1", environment=fake):
        async with asyncio.timeout(PATIENCE_S):
            while not (await client.gpu_reports(["n1"])).get("n1"):  # noqa: ASYNC110 - no one is told of a heartbeat
                await asyncio.sleep(0.1)
            gpus[1].action, gpus[1].clocks = 1, 0x40
            write_gpus(file, *gpus)
            failing = await first_failing(bus)
            while "hardware" not in (shown := await cli.eflow("nodes", "--pool", POOL, COLUMNS="200")).out:  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # the heartbeat comes next
            as_json = await cli.eflow("nodes", "--pool", POOL, "--json")
    await bus.close()
    assert (failing.node_id, failing.gpu_index, failing.reason) == ("n1", 1, "needs a reset")
    assert "GPU 1 needs a reset" in shown.out
    assert "40%" in shown.out
    assert "91 °C, hardware thermal slowdown" in shown.out
    (node,) = as_json.value
    assert node["failing"] == {"1": "needs a reset"}
    assert [gpu["utilization"] for gpu in node["gpus"]] == [0.8, 0.0]


async def first_failing(bus: Bus) -> GpuFailing:
    async for batch in bus.follow(POOL, after_sequence=0):
        for record in batch:
            if isinstance(message := codec.message_or_none(record.data), GpuFailing):
                return message
    raise AssertionError("the ledger is followed for ever")
