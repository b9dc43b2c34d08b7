"""A pool on a real server that accepts keys only, and a connection for each role."""

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from elasticflow.local import key_store
from elasticflow.local.key_store import KeyStore
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.nats.permissions import Role
from elasticflow.shared.runtime.bus.stream_configs import MAX_PAYLOAD_BYTES
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from testbed.deployed_server import serving

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
