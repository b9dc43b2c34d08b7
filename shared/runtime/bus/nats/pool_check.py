"""Whether server and streams are as a pool needs them."""

import contextlib
import re
from collections.abc import Callable
from functools import partial

from elasticflow.shared.errors import NotPermitted, ServerTooSmall, TooFewReplicas
from elasticflow.shared.runtime.bus.nats import direct_reader, jetstream_api
from elasticflow.shared.runtime.bus.nats.connection import Connection
from elasticflow.shared.runtime.bus.streams import (
    MAX_PAYLOAD_BYTES,
    StreamLimits,
    check_replicas,
    protection_problems,
    stream_configs,
)

NEEDED_VERSION = (2, 12)  # of the server
LEAST_LEFT_BYTES = 1 << 30


def check_max_payload(connection: Connection) -> None:
    """Raises ServerTooSmall."""
    found_bytes = connection.client.max_payload
    if found_bytes < MAX_PAYLOAD_BYTES:
        raise ServerTooSmall(connection.url, "max_payload", found_bytes, MAX_PAYLOAD_BYTES)


def version_problem(found: str) -> str | None:
    """The problem of a server with this version; None if it has none."""
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) >= NEEDED_VERSION:
        return None
    needed = ".".join(map(str, NEEDED_VERSION))
    return f"NATS has version {found or 'unknown'}: upgrade its servers to {needed} or newer"


async def storage_problem(connection: Connection) -> str | None:
    """The problem of the account's storage, or None. Servers show their own limit on their HTTP page only.

    Raises NotPermitted, Unavailable.
    """
    left_bytes = await jetstream_api.storage_left(connection)
    if left_bytes is None or left_bytes >= LEAST_LEFT_BYTES:
        return None
    return (
        f"the account may store {left_bytes >> 20} MiB more, less than {LEAST_LEFT_BYTES >> 20} MiB: "
        "raise its max_file; when it is full, NATS stores no decision"
    )


def server_problems(connection: Connection) -> tuple[str, ...]:
    """What a client of any role can see: it asks nothing."""
    found = (version_problem(connection.server_version), _problem(partial(check_max_payload, connection)))
    return tuple(filter(None, found))


async def problems(connection: Connection, pool: str, limits: StreamLimits) -> tuple[str, ...]:
    """See `NatsBus.problems`."""
    found = [*server_problems(connection)]
    with contextlib.suppress(NotPermitted):  # to nodes
        if problem := await storage_problem(connection):
            found.append(problem)
    replicas: dict[str, int] = {}
    for wanted in stream_configs(pool, limits):
        name = wanted["name"]
        there = await jetstream_api.stream_config(connection, name)
        if there is None:
            found.append(f"stream {name} is missing: run `eflow configure --pool {pool}`")
            continue
        replicas[name] = there["num_replicas"]
        found += protection_problems(wanted, there)
        lost = 0
        if name.startswith("KV_"):
            with contextlib.suppress(NotPermitted):  # to nodes and services
                lost = await direct_reader.num_unreadable_values(connection, name)
        if lost:
            found.append(
                f"stream {name} has {lost} values that NATS cannot read, because a file of it is damaged: readers see "
                "them as missing. The services write nodes, leases and views again; lines of logs are lost"
            )
    if problem := _problem(partial(check_replicas, replicas, limits.replicas)):
        found.append(problem)
    return tuple(found)


def _problem(check: Callable[[], None]) -> str | None:
    try:
        check()
    except (ServerTooSmall, TooFewReplicas) as error:
        return str(error)
    return None
