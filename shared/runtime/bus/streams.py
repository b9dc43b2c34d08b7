"""The names of what a pool keeps on the bus: its streams and buckets, and their subjects, objects and keys.

One ledger stream for each pool, so that its sequences have no gaps and a reader can check that it missed
none. `stream_configs` says how each is configured.
Quotes and answers are plain messages, which are not stored.
"""

import re

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages import subjects

LEDGER_PREFIX = "EF_LEDGER_"
NODE_PREFIX = "EF_NODES_"
ARTIFACT_PREFIX = "EF_ARTIFACTS_"
LOG_PREFIX = "EF_LOGS_"
VIEW_PREFIX = "EF_VIEWS_"
EVERY_LEDGER = "ef.ledger.>"

ARTIFACT_PIECE_BYTES = 2 * 1024 * 1024  # of one object; a larger file has several


def valid_pool(pool: str) -> bool:
    """A pool's name is one token of a subject and part of a stream's name."""
    return re.fullmatch(r"[A-Za-z0-9_-]{1,64}", pool) is not None


def check_pool(pool: str) -> None:
    """Raises BadSettings where no pool can have this name."""
    if not valid_pool(pool):
        raise BadSettings((f"a pool's name is 1 to 64 letters, digits, _ and -, not {pool!r}",))


def ledger_stream(pool: str) -> str:
    return f"{LEDGER_PREFIX}{pool}"


def submit_stream(pool: str) -> str:
    return f"EF_SUBMIT_{pool}"


def dead_letter_stream(pool: str) -> str:
    return f"EF_DEAD_{pool}"


def task_stream(pool: str) -> str:
    return f"EF_TASKS_{pool}"


def result_stream(pool: str) -> str:
    return f"EF_RESULTS_{pool}"


def padding_streams(pool: str) -> tuple[str, ...]:
    """What only padding loads need, and older versions did not make."""
    return task_stream(pool), result_stream(pool)


def optional_streams(pool: str) -> tuple[str, ...]:
    """What jobs train without: a server may be too small for it."""
    return f"OBJ_{artifact_bucket(pool)}", f"KV_{log_bucket(pool)}"


def code_bucket(pool: str) -> str:
    """Objects: the code of jobs."""
    return f"EF_CODE_{pool}"


def code_name(tenant: str, digest: str) -> str:
    """The name of an object with code: only its tenant writes it."""
    return f"{tenant}/{digest}"


def artifact_bucket(pool: str) -> str:
    """Objects: what jobs have produced."""
    return f"{ARTIFACT_PREFIX}{pool}"


def artifact_name(tenant: str, node_id: str, digest: str, piece: int) -> str:
    """The name of an object with a piece of a file: only its node writes it, and only its tenant reads it."""
    return f"{tenant}.{node_id}/{digest}.{piece}"


def num_pieces(num_bytes: int) -> int:
    """Objects that a file of this size takes."""
    return -(-num_bytes // ARTIFACT_PIECE_BYTES)


def log_bucket(pool: str) -> str:
    """Keys and values: what jobs write, in rings of chunks."""
    return f"{LOG_PREFIX}{pool}"


def log_key(tenant: str, node_id: str, job: str, name: str) -> str:
    """job: `log_owner`. name: of a slot of the ring, or of the key beside it. Only its node writes it, and only its
    tenant reads it."""
    return f"{tenant}.{node_id}.{job}.{name}"


def log_owner(job_id: str, identity: str) -> str:
    """The job in the keys of its lines: a later job of the id has others."""
    return f"{job_id}={identity}"


def view_bucket(pool: str) -> str:
    """Keys and values: what each tenant sees of the pool. The monitor writes it (docs/adr/0071)."""
    return f"{VIEW_PREFIX}{pool}"


# Keys of it that have no tenant in their names. Tenants may read the first two.
AS_OF_KEY, POOL_VIEW_KEY, WRITER_KEY = "as_of", "pool", "writer"


def tenant_view_key(tenant: str) -> str:
    """Its jobs. Only this tenant reads it."""
    return f"{tenant}.jobs"


def history_key(tenant: str, job_id: str) -> str:
    """The history of one of its jobs. Only this tenant reads it."""
    return f"{tenant}.history.{job_id}"


def is_read_by_subject(bucket: str) -> bool:
    """Whether readers may name single objects or keys only: each is one message, found by its subject."""
    return bucket.startswith((ARTIFACT_PREFIX, LOG_PREFIX, VIEW_PREFIX))


def snapshot_bucket(pool: str) -> str:
    """Objects: folded states, each a cache that anyone may delete."""
    return f"EF_SNAPSHOT_{pool}"


def state_bucket(pool: str) -> str:
    """Keys and values: leases."""
    return f"EF_STATE_{pool}"


def node_bucket(pool: str) -> str:
    """Keys and values: the last heartbeat of each node, or its fence."""
    return f"{NODE_PREFIX}{pool}"


def republished_on(bucket: str, key: str) -> str:
    """The subject on which a stored value is published too; "" for most."""
    if not bucket.startswith(NODE_PREFIX):
        return ""
    return subjects.telemetry(bucket.removeprefix(NODE_PREFIX), key)


def ledger_subjects(pool: str) -> str:
    return f"ef.ledger.{pool}.>"


def is_of_ledger(subject: str) -> bool:
    return subject.startswith("ef.ledger.")


def pool_of(ledger_subject: str) -> str:
    """ef.ledger.<pool>..."""
    return ledger_subject.split(".", 3)[2]


def submit_subjects(pool: str) -> str:
    return f"ef.submit.*.{pool}"


def dead_letter_subjects(pool: str) -> str:
    return f"ef.dead.{pool}.>"


def task_subjects(pool: str) -> str:
    return f"ef.tasks.{pool}.*"


def value_subject(bucket: str, key: str) -> str:
    """The subject of the newest value of a key, in the layout of every NATS key-value client."""
    return f"$KV.{bucket}.{key}"
