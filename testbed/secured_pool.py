"""Real servers with configuration files, those of deploy/nats or of a test; and a pool that accepts keys only."""

import asyncio
import contextlib
import json
import os
import re
import signal
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from elasticflow.local import key_store
from elasticflow.local.key_store import KeyStore
from elasticflow.local.supervisor import free_port
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import find_server
from elasticflow.shared.runtime.bus.nats.permissions import Role
from elasticflow.shared.runtime.bus.streams import MAX_PAYLOAD_BYTES
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from testbed.real_pool import eventually

# --- servers with configuration files ------------------------------------------------------------------


DEPLOY = Path(__file__).parents[1] / "deploy"


@contextlib.asynccontextmanager
async def serving(*configs: Path, **environment: str) -> AsyncIterator[str]:
    """Servers with these files, each in a folder of its own; the URL of the first, without credentials."""
    processes: list[asyncio.subprocess.Process] = []
    try:
        for config in configs:
            config.write_text(f'{config.read_text()}\nports_file_dir: "{config.parent}"\n')
            named = os.environ | environment | {"NATS_SERVER_NAME": config.parent.name}
            command = (find_server(), "--config", config)
            processes.append(await asyncio.create_subprocess_exec(*command, env=named, stderr=DEVNULL))
        ports = await eventually(lambda: [*configs[0].parent.glob("*.ports")], "the server listens")
        text = await eventually(lambda: ports[0].read_text(), "the server has written its port")
        yield json.loads(text)["nats"][0]
    finally:
        for process in processes:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def deployed(
    folder: Path, *, num_servers: int = 1, access: Mapping[str, str] = MappingProxyType({}), store: str = ""
) -> AsyncIterator[str]:
    """The URL of a server with the files of deploy/nats, or of a cluster of them, on other ports and folders.

    access: files that replace those of deploy/nats/access. store: of each server, by default as in compose.yaml.
    """
    (of_compose,) = re.findall(r"NATS_MAX_FILE_STORE:-(\w+)}", (DEPLOY / "compose.yaml").read_text())
    routes = [f"nats://route:t@127.0.0.1:{free_port('127.0.0.1')}" for _ in range(num_servers)]
    environment = {f"NATS_ROUTE_{number}": route for number, route in enumerate(routes, start=1)}
    configs: list[Path] = []
    for number, route in enumerate(routes, start=1):
        own = folder / f"nats-{number}"
        (own / "access").mkdir(parents=True)
        replaced = {"/data": str(own), "0.0.0.0:6222": route.rpartition("@")[2]}
        replaced |= dict.fromkeys(("0.0.0.0:4222", "0.0.0.0:8222"), "127.0.0.1:-1")
        for file in (DEPLOY / "nats").rglob("*.conf"):
            text = access.get(file.name, file.read_text())
            for old, new in replaced.items():
                text = text.replace(old, new)
            (own / file.relative_to(DEPLOY / "nats")).write_text(text)
        configs.append(own / ("single.conf" if num_servers == 1 else "cluster.conf"))
    async with serving(*configs, NATS_TOKEN="t", NATS_MAX_FILE_STORE=store or of_compose, **environment) as url:
        yield url.replace("//", "//t@")


# --- a pool with keys ----------------------------------------------------------------------------------


POOL = "pool-a"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuredPool:
    url: str
    keys: KeyStore
    pid_file: Path

    def reload(self) -> None:
        """Let the server read its configuration again."""
        os.kill(int(self.pid_file.read_text()), signal.SIGHUP)

    @contextlib.asynccontextmanager
    async def connected(self, role: Role, name: str) -> AsyncIterator[NatsBus]:
        access = NatsAccess(credentials=self.keys.seed_file(role, name))
        bus = await connect_nats(self.url, name=name, wait_s=60.0, access=access)
        try:
            yield bus
        finally:
            await bus.close()


@contextlib.asynccontextmanager
async def secured_pool(folder: Path, *names: tuple[Role, str]) -> AsyncIterator[SecuredPool]:
    """names: of the keys beside those of the operator and the services."""
    keys = key_store.create(folder / "keys", POOL)
    for role, name in names:
        keys = keys.add(role, name)
    config = folder / "server.conf"
    config.write_text(f"""
        listen: "127.0.0.1:-1"
        max_payload: {MAX_PAYLOAD_BYTES}
        jetstream {{ store_dir: "{folder}" }}
        pid_file: "{folder}/server.pid"
        include "{keys.accounts_file.relative_to(folder)}"
    """)
    async with serving(config) as url:
        pool = SecuredPool(url=url, keys=keys, pid_file=folder / "server.pid")
        async with pool.connected(Role.OPERATOR, "operator") as bus:
            await bus.ensure_pool(POOL)
        yield pool
