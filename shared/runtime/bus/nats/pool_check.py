"""Whether server and streams are as a pool needs them."""

from functools import partial

from elasticflow.shared.errors import ServerTooSmall, TooFewReplicas
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.connection import Connection
from elasticflow.shared.runtime.bus.nats.jetstream_api import stream_config


def check_max_payload(connection: Connection) -> None:
    """Raises ServerTooSmall."""
    found_bytes = connection.client.max_payload
    if found_bytes < streams.MAX_PAYLOAD_BYTES:
        raise ServerTooSmall(connection.url, "max_payload", found_bytes, streams.MAX_PAYLOAD_BYTES)


async def problems(connection: Connection, pool: str, limits: streams.StreamLimits) -> tuple[str, ...]:
    """See `NatsBus.problems`."""
    found: list[str] = []
    replicas: dict[str, int] = {}
    for wanted in streams.stream_configs(pool, limits):
        name = wanted["name"]
        there = await stream_config(connection, name)
        if there is None:
            found.append(f"stream {name} is missing: run `eflow configure --pool {pool}`")
            continue
        replicas[name] = there["num_replicas"]
        found += streams.protection_problems(wanted, there)
    for check in (partial(check_max_payload, connection), partial(streams.check_replicas, replicas, limits.replicas)):
        try:
            check()
        except (ServerTooSmall, TooFewReplicas) as error:
            found.append(str(error))
    return tuple(found)
