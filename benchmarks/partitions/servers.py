"""A cluster of three nats-servers, each on a machine of its own."""

import os
import subprocess
from pathlib import Path

from benchmarks.partitions.network import Network
from elasticflow.shared.runtime.bus.nats.embedded_server import find_server
from elasticflow.shared.runtime.bus.stream_configs import MAX_PAYLOAD_BYTES

SERVERS = ("server-1", "server-2", "server-3")


def url_of(network: Network, server: str) -> str:
    return f"nats://{network.address[server]}:4222"


def start_server(network: Network, name: str, folder: Path) -> subprocess.Popen[bytes]:
    """folder: holds its configuration, its log and, in a folder with its name, its streams."""
    address = network.address[name]
    routes = ", ".join(f'"nats://{network.address[other]}:6222"' for other in SERVERS)
    config = folder / f"{name}.conf"
    config.write_text(
        f'server_name: {name}\nhost: "{address}"\nport: 4222\nmax_payload: {MAX_PAYLOAD_BYTES}\n'
        f'jetstream {{ store_dir: "{folder / name}", sync_interval: always, max_file_store: 20GB }}\n'
        f'cluster {{ name: c, listen: "{address}:6222", routes: [{routes}] }}\n'
    )
    return network.start(name, [find_server(), "--config", config], env=os.environ, log=folder / f"{name}.log")
