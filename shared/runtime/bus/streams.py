"""The names of what a pool keeps on the bus: its streams and buckets, and their subjects, objects and keys.

One ledger stream for each pool, so that its sequences have no gaps and a reader can check that it missed
none.
Quotes and answers are plain messages, which are not stored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticflow.shared.errors import BadSettings, TooFewReplicas
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES, MAX_SUBMISSION_BYTES

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


# --- stream configs -----------------------------------------------------------------------------------
# How each stream and bucket of a pool is configured, and what its server must accept.

# What a server must accept; NATS counts headers too. The embedded server and deploy/nats/common.conf set it.
MAX_PAYLOAD_BYTES = MAX_MESSAGE_BYTES + 64 * 1024
# The largest command with its headers: a replica of admission holds hundreds of them.
MAX_COMMAND_BYTES = MAX_SUBMISSION_BYTES + 4 * 1024

_MIB = 1 << 20
_DAY_S = 86_400
_NS = 1_000_000_000
_PER_SUBJECT = "discard_new_per_subject"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """replicas: copies of each stream: 1, or 3 or 5 in a cluster.

    Bounds are small because JetStream reserves them; what has none (the ledger: it is the truth; code,
    snapshots, values) takes what the disk has. Tasks and results of padding loads, artifacts and logs are bounded,
    because a full disk stops all jobs. New artifacts and logs replace the oldest ones. No tenant may fill the
    stream of commands alone.
    """

    replicas: int = 1
    submit_bytes: int = 512 * _MIB
    submit_commands_per_tenant: int = 500  # that wait for a decision; of the largest, those of four tenants fit
    dead_letter_bytes: int = 64 * _MIB
    dead_letter_age_s: int = 30 * _DAY_S
    task_bytes: int = 128 * _MIB
    result_bytes: int = 128 * _MIB
    result_age_s: int = 7 * _DAY_S
    artifact_bytes: int = 4096 * _MIB
    log_bytes: int = 512 * _MIB
    log_age_s: int = 30 * _DAY_S

    @property
    def reserved_bytes(self) -> int:
        """What a new pool takes of the server's storage at least: it may be without artifacts and logs."""
        return self.submit_bytes + self.dead_letter_bytes + self.task_bytes + self.result_bytes


def largest_message(subject: str) -> int:
    """That the stream of this subject takes, with its headers."""
    return MAX_COMMAND_BYTES if subject.startswith("ef.submit.") else MAX_PAYLOAD_BYTES


def check_replicas(found: Mapping[str, int], wanted: int) -> None:
    """found: replicas by stream. Raises TooFewReplicas; more than wanted are fine."""
    lacking = {name: replicas for name, replicas in found.items() if replicas < wanted}
    if lacking:
        raise TooFewReplicas(tuple(lacking), min(lacking.values()), wanted)


def protection_problems(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What a stream lets its writers do although they may not: it is of an older version, or changed since."""
    name = wanted["name"]
    problems = [
        f"stream {name} has {setting}: {str(found.get(setting, False)).lower()}, so its writers may delete messages of "
        f"others: run `nats stream edit {name}` and change it"
        for setting in ("allow_rollup_hdrs", "deny_delete")
        if found.get(setting, False) != wanted.get(setting, False)
    ]
    limit_bytes, found_bytes = wanted.get("max_msg_size", -1), found.get("max_msg_size", -1)
    if limit_bytes > 0 and not 0 < found_bytes <= limit_bytes:
        problems.append(
            f"stream {name} has no max_msg_size of {limit_bytes}, so a tenant may fill the memory of admission: run "
            f"`nats stream edit {name} --max-msg-size {limit_bytes}`"
        )
    if wanted.get(_PER_SUBJECT, False) and not found.get(_PER_SUBJECT, False):
        problems.append(
            f"stream {name} has no limit for each tenant, so one may fill it for all: run `nats stream edit {name} "
            f"--max-msgs-per-subject {wanted['max_msgs_per_subject']} --discard-per-subject`"
        )
    return problems


def stream_configs(pool: str, limits: StreamLimits) -> list[dict[str, Any]]:
    """The streams of a pool, as the JetStream API wants them; the ledger last, so that its being there means that all
    are, except `padding_streams` of a pool that an older version made."""
    return [
        _stream(
            submit_stream(pool),
            [submit_subjects(pool)],
            limits,
            retention="workqueue",
            discard="new",  # a full stream refuses a message and drops none
            max_bytes=limits.submit_bytes,
            max_msg_size=MAX_COMMAND_BYTES,
            max_msgs_per_subject=limits.submit_commands_per_tenant,  # each tenant has one subject
            discard_new_per_subject=True,
        ),
        _stream(
            dead_letter_stream(pool),
            [dead_letter_subjects(pool)],
            limits,
            discard="old",
            max_bytes=limits.dead_letter_bytes,
            max_age=limits.dead_letter_age_s * _NS,
        ),
        _stream(
            task_stream(pool),
            [task_subjects(pool)],
            limits,
            retention="workqueue",
            discard="new",
            max_bytes=limits.task_bytes,
        ),
        _stream(
            result_stream(pool),
            [subjects.every_result(pool)],
            limits,
            discard="new",
            max_bytes=limits.result_bytes,
            max_age=limits.result_age_s * _NS,
        ),
        _object_bucket(code_bucket(pool), limits),
        _object_bucket(snapshot_bucket(pool), limits),
        _key_value_bucket(
            state_bucket(pool),
            limits,
            discard="new",
            allow_rollup_hdrs=True,
            allow_msg_ttl=True,  # a lease is a key that the server forgets
        ),
        _key_value_bucket(
            node_bucket(pool),
            limits,
            discard="new",
            republish={
                "src": value_subject(node_bucket(pool), "*"),
                "dest": republished_on(node_bucket(pool), "{{wildcard(1)}}"),
            },
        ),
        _object_bucket(
            artifact_bucket(pool),
            limits,
            discard="old",
            max_bytes=limits.artifact_bytes,
        ),
        _key_value_bucket(
            log_bucket(pool),
            limits,
            discard="old",
            max_bytes=limits.log_bytes,
            max_age=limits.log_age_s * _NS,
        ),
        _key_value_bucket(
            view_bucket(pool),
            limits,
            discard="new",
            allow_msg_ttl=True,  # the history of a job is forgotten long after its end
        ),
        _stream(
            ledger_stream(pool),
            [ledger_subjects(pool)],
            limits,
            discard="new",
            deny_delete=True,  # of single messages; `Bus.delete_ledger` deletes what is archived (docs/adr/0061)
        ),
    ]


def _stream(name: str, stream_subjects: list[str], limits: StreamLimits, **config: Any) -> dict[str, Any]:
    return {
        "name": name,
        "subjects": stream_subjects,
        "retention": "limits",
        "storage": "file",
        "num_replicas": limits.replicas,
        "allow_direct": True,
        **config,
    }


def _object_bucket(bucket: str, limits: StreamLimits, *, discard: str = "new", **config: Any) -> dict[str, Any]:
    """The configuration of an object bucket, without rollups: with one, each writer could delete the objects of all."""
    return _stream(f"OBJ_{bucket}", [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"], limits, discard=discard, **config)


def _key_value_bucket(bucket: str, limits: StreamLimits, **config: Any) -> dict[str, Any]:
    """The configuration of a bucket that keeps the newest value of each key."""
    return _stream(f"KV_{bucket}", [value_subject(bucket, ">")], limits, max_msgs_per_subject=1, **config)
