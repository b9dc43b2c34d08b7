"""The state of a NATS server in plain Python values; each `MemoryBus` is one of its clients.

Time is the clock's, order is that of the calls: the same calls give the same history.
"""

from elasticflow.shared.errors import UnknownStream, WrongExpectedSequence
from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import MAX_INBOX, MAX_INBOX_BYTES, Message, Value
from elasticflow.shared.runtime.bus.memory.link import Link
from elasticflow.shared.runtime.bus.memory.stored_stream import Bell, Consumer, Stream, matches
from elasticflow.shared.runtime.bus.stream_configs import MAX_COMMAND_BYTES, MAX_PAYLOAD_BYTES, StreamLimits


class Listener:
    """A subscription's end at the server. link: to its client."""

    def __init__(self, pattern: str, queue: str, link: Link) -> None:
        self.pattern = pattern
        self.queue = queue
        self.link = link
        self.messages: list[Message] = []
        self._num_bytes = 0
        self.closed = False
        self.bell = Bell()

    def put(self, message: Message, position: int | None = None) -> None:
        """position: before which of the waiting messages; None is the end."""
        self.messages.insert(len(self.messages) if position is None else position, message)
        self._num_bytes += len(message.data)
        while len(self.messages) > MAX_INBOX or self._num_bytes > MAX_INBOX_BYTES:
            self.take()
        self.bell.ring()

    def take(self) -> Message:
        """The oldest."""
        message = self.messages.pop(0)
        self._num_bytes -= len(message.data)
        return message

    def close(self) -> None:
        self.closed = True
        self.bell.ring()


class MemoryBroker:
    """The state that the clients of one bus share: as of one server, not of a cluster.

    max_payload_bytes: the largest message that it accepts.
    """

    def __init__(self, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self.max_payload_bytes = max_payload_bytes
        self.listeners: list[Listener] = []
        self.objects: dict[str, dict[str, bytes]] = {}
        self.object_times_s: dict[tuple[str, str], float] = {}  # by bucket and name
        self._streams: dict[str, Stream] = {}
        self._consumers: dict[tuple[str, str], Consumer] = {}
        self._values: dict[str, dict[str, tuple[Value, float]]] = {}
        self._revisions: dict[str, int] = {}
        self._route: dict[str, Stream] = {}
        self._turn = 0

    def ensure_pool(self, pool: str, limits: StreamLimits | None = None) -> None:
        limits = limits or StreamLimits()
        for name, kept in {
            streams.submit_stream(pool): Stream(
                streams.submit_subjects(pool),
                max_bytes=limits.submit_bytes,
                max_message_bytes=MAX_COMMAND_BYTES,
                max_per_subject=limits.submit_commands_per_tenant,
            ),
            streams.dead_letter_stream(pool): Stream(streams.dead_letter_subjects(pool)),
            streams.task_stream(pool): Stream(streams.task_subjects(pool), limits.task_bytes),
            streams.result_stream(pool): Stream(subjects.every_result(pool), limits.result_bytes),
            streams.ledger_stream(pool): Stream(streams.ledger_subjects(pool)),
        }.items():
            self._streams.setdefault(name, kept)
        for bucket in (streams.code_bucket(pool), streams.snapshot_bucket(pool), streams.artifact_bucket(pool)):
            self.objects.setdefault(bucket, {})
        for bucket_of in (streams.state_bucket, streams.node_bucket, streams.log_bucket, streams.view_bucket):
            self._values.setdefault(bucket_of(pool), {})

    def pools(self) -> tuple[str, ...]:
        prefix = streams.LEDGER_PREFIX
        return tuple(sorted(name.removeprefix(prefix) for name in self._streams if name.startswith(prefix)))

    def stream(self, name: str) -> Stream:
        if name not in self._streams:
            raise UnknownStream(name)
        return self._streams[name]

    def ledger(self, pool: str) -> Stream:
        return self.stream(streams.ledger_stream(pool))

    def route(self, subject: str) -> Stream:
        """The stream that takes a subject."""
        if subject not in self._route:
            takers = [stream for stream in self._streams.values() if matches(stream.subjects, subject)]
            if not takers:
                raise UnknownStream(subject)
            self._route[subject] = takers[0]
        return self._route[subject]

    def consumer(self, stream: str, name: str, subjects: str, ack_wait_s: float) -> Consumer:
        consumer = self._consumers.setdefault((stream, name), Consumer(self.stream(stream), subjects, ack_wait_s))
        consumer.ack_wait_s = ack_wait_s
        return consumer

    def forget_consumer(self, stream: str, name: str) -> None:
        """No effect if there is none. Queues that are open continue, as if they had made it again."""
        if (stream, name) in self._consumers:
            self._consumers[stream, name].forget()

    def receivers(self, subject: str) -> list[Listener]:
        """All subscribers without a queue, and one of each queue, in rotation."""
        listening = [listener for listener in self.listeners if matches(listener.pattern, subject)]
        chosen = [listener for listener in listening if not listener.queue]
        self._turn += 1
        for queue in sorted({listener.queue for listener in listening} - {""}):
            members = [listener for listener in listening if listener.queue == queue]
            chosen.append(members[self._turn % len(members)])
        return chosen

    def wake_all(self) -> None:
        """A client has closed: each of its waiting calls checks that."""
        for stream in self._streams.values():
            stream.bell.ring()

    def value(self, bucket: str, key: str, now_s: float) -> Value | None:
        if bucket not in self._values:
            raise UnknownStream(streams.value_subject(bucket, key))
        value, expires_s = self._values[bucket].get(key, (None, 0.0))
        return value if now_s < expires_s else None

    def put_value(
        self, bucket: str, key: str, data: bytes, expected: int | None, expires_s: float, now_s: float
    ) -> int:
        current = self.value(bucket, key, now_s)
        if expected is not None and expected != (current.revision if current else 0):
            raise WrongExpectedSequence(streams.value_subject(bucket, key), expected)
        revision = self._revisions[bucket] = self._revisions.get(bucket, 0) + 1
        self._values[bucket][key] = (Value(data=data, revision=revision), expires_s)
        return revision
