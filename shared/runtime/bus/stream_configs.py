"""How each stream and bucket of a pool is configured, and what its server must accept."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticflow.shared.errors import TooFewReplicas
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES, MAX_SUBMISSION_BYTES
from elasticflow.shared.runtime.bus import streams

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
            streams.submit_stream(pool),
            [streams.submit_subjects(pool)],
            limits,
            retention="workqueue",
            discard="new",  # a full stream refuses a message and drops none
            max_bytes=limits.submit_bytes,
            max_msg_size=MAX_COMMAND_BYTES,
            max_msgs_per_subject=limits.submit_commands_per_tenant,  # each tenant has one subject
            discard_new_per_subject=True,
        ),
        _stream(
            streams.dead_letter_stream(pool),
            [streams.dead_letter_subjects(pool)],
            limits,
            discard="old",
            max_bytes=limits.dead_letter_bytes,
            max_age=limits.dead_letter_age_s * _NS,
        ),
        _stream(
            streams.task_stream(pool),
            [streams.task_subjects(pool)],
            limits,
            retention="workqueue",
            discard="new",
            max_bytes=limits.task_bytes,
        ),
        _stream(
            streams.result_stream(pool),
            [subjects.every_result(pool)],
            limits,
            discard="new",
            max_bytes=limits.result_bytes,
            max_age=limits.result_age_s * _NS,
        ),
        _object_bucket(streams.code_bucket(pool), limits),
        _object_bucket(streams.snapshot_bucket(pool), limits),
        _key_value_bucket(
            streams.state_bucket(pool),
            limits,
            discard="new",
            allow_rollup_hdrs=True,
            allow_msg_ttl=True,  # a lease is a key that the server forgets
        ),
        _key_value_bucket(
            streams.node_bucket(pool),
            limits,
            discard="new",
            republish={
                "src": streams.value_subject(streams.node_bucket(pool), "*"),
                "dest": streams.republished_on(streams.node_bucket(pool), "{{wildcard(1)}}"),
            },
        ),
        _object_bucket(
            streams.artifact_bucket(pool),
            limits,
            discard="old",
            max_bytes=limits.artifact_bytes,
        ),
        _key_value_bucket(
            streams.log_bucket(pool),
            limits,
            discard="old",
            max_bytes=limits.log_bytes,
            max_age=limits.log_age_s * _NS,
        ),
        _key_value_bucket(
            streams.view_bucket(pool),
            limits,
            discard="new",
            allow_msg_ttl=True,  # the history of a job is forgotten long after its end
        ),
        _stream(
            streams.ledger_stream(pool),
            [streams.ledger_subjects(pool)],
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
    return _stream(f"KV_{bucket}", [streams.value_subject(bucket, ">")], limits, max_msgs_per_subject=1, **config)
