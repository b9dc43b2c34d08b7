"""The expected failures, split by what the caller does next.

    ElasticFlowError
    ├── Retry                      the message is valid: wait, and repeat the call
    │   ├── Unavailable            no server, or no leader; the message is not stored
    │   ├── StorageFull            no disk space until the operator frees some; the message is not stored
    │   ├── MaybeStored            the acknowledgement was lost: look for the message, or repeat an idempotent call
    │   ├── NoResponder            no process listens on this subject
    │   ├── RequestTimeout         a process listens, but did not reply in time
    │   └── NotFound               no such object or key, so far
    ├── Reload                     the decision is based on an old state: fold the new messages, decide again
    │   ├── WrongExpectedSequence  another replica wrote first
    │   └── LeaseLost              another replica may hold the lease
    ├── PermanentFailure           this message can never succeed: dead-letter it, and reply to its sender
    │   ├── UnknownStream          no pool takes this subject
    │   ├── TooLarge               larger than one message may be
    │   ├── DamagedObject          an object in a bucket is larger than expected, or not what it says it is
    │   └── BusRejected            the server rejects the message, with a reason
    └── Stop                       this process cannot continue: print the reason and exit; the operator must act
        ├── BadSettings            the environment or a configuration file is invalid
        ├── BadCredentials         the server rejects the token, the key or the certificate
        ├── NotPermitted           the key of this process does not permit this subject
        ├── BusClosed              the connection is closed, and does not reconnect
        ├── LedgerBroken           the ledger has a gap
        ├── LedgerTruncated        the ledger has lost messages that were read before
        ├── EpochUnusable          the ledger begins at a snapshot that is missing or damaged
        ├── LedgerUnusable         a ledger, an archive or a view of it cannot be used, for one of several reasons
        ├── CannotStart            a process cannot start on this machine, for one of several reasons
        ├── ServerTooSmall         the NATS server accepts or stores less than a pool needs
        └── TooFewReplicas         streams of the pool have fewer copies than the settings ask for

A rejection (a job that is not admitted) is a reply, not a failure. A broken invariant is an `assert`.
An error has a class of its own if a caller treats it differently, or if users may catch it. It has its data in fields;
`__str__` builds the sentence from them. All others are one class for each category: a reason for programs, and the
sentence, which stands where it is raised (docs/adr/0106).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar


@dataclass(eq=False)
class ElasticFlowError(Exception):
    """An expected failure."""

    MESSAGE: ClassVar[str] = "unexplained failure"

    def __str__(self) -> str:
        return self.MESSAGE.format_map(vars(self))

    @property
    def code(self) -> str:
        """What happened, in a word for programs. It is the name of the class, or the reason of a class with several."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()


class Retry(ElasticFlowError):
    """Wait, and repeat the call."""


class Reload(ElasticFlowError):
    """Fold the new messages of the ledger, and decide again."""


class PermanentFailure(ElasticFlowError):
    """Dead-letter the message: a repetition cannot succeed."""


class Stop(ElasticFlowError):
    """Print the sentence and exit: the operator must act."""


Reason = TypeVar("Reason", bound=str)


@dataclass(eq=False)
class Explained(Generic[Reason]):
    """Part of an error class with several reasons, which no caller tells apart. explanation: the whole sentence."""

    reason: Reason
    explanation: str

    def __str__(self) -> str:
        return self.explanation

    @property
    def code(self) -> str:
        return self.reason


@dataclass(eq=False)
class Unavailable(Retry):
    """The message is not stored. url: without secrets."""

    url: str
    reason: str

    MESSAGE: ClassVar[str] = (
        "no NATS JetStream at {url} ({reason}); start one (`eflow up`), or set NATS_URL to one that runs"
    )


@dataclass(eq=False)
class StorageFull(Retry):
    """reason: as the server words it."""

    subject: str
    reason: str

    def __str__(self) -> str:
        if "per subject" not in self.reason:
            return f"NATS cannot store {self.subject} ({self.reason}); free disk space or raise the limit"
        tenant, pool = self.subject.split(".")[2:4]
        return (
            f"tenant {tenant} has as many undecided commands in pool {pool} as its limit permits; wait until admission "
            f"has decided some, or let an operator raise max_msgs_per_subject of stream EF_SUBMIT_{pool}"
        )


@dataclass(eq=False)
class MaybeStored(Retry):
    """The message was sent, but not acknowledged: it is in the stream, will be soon, or never."""

    subject: str
    message_id: str

    MESSAGE: ClassVar[str] = "no acknowledgement for message {message_id} on {subject}: it may be stored"


@dataclass(eq=False)
class NoResponder(Retry):
    subject: str

    MESSAGE: ClassVar[str] = "no process listens on {subject}"


@dataclass(eq=False)
class RequestTimeout(Retry):
    subject: str
    timeout_s: float

    MESSAGE: ClassVar[str] = "no reply on {subject} within {timeout_s:g} s"


@dataclass(eq=False)
class NotFound(Retry):
    bucket: str
    name: str

    MESSAGE: ClassVar[str] = "no {name!r} in {bucket}"


@dataclass(eq=False)
class WrongExpectedSequence(Reload):
    """expected: the last sequence that the writer has read on this subject. found: the actual one; None if unknown."""

    subject: str
    expected: int
    found: int | None = None

    MESSAGE: ClassVar[str] = "{subject} has messages after sequence {expected}"


@dataclass(eq=False)
class LeaseLost(Reload):
    name: str
    holder_id: str

    MESSAGE: ClassVar[str] = "{holder_id} no longer holds lease {name}"


@dataclass(eq=False)
class UnknownStream(PermanentFailure):
    subject: str

    MESSAGE: ClassVar[str] = "no stream takes {subject}: unknown pool"


@dataclass(eq=False)
class TooLarge(PermanentFailure):
    subject: str
    num_bytes: int
    limit_bytes: int

    MESSAGE: ClassVar[str] = "{num_bytes} bytes for {subject}; at most {limit_bytes} fit in one message"


@dataclass(eq=False)
class DamagedObject(PermanentFailure):
    bucket: str
    name: str
    reason: str

    MESSAGE: ClassVar[str] = "object {name!r} in {bucket} is unusable: {reason}"


@dataclass(eq=False)
class BusRejected(PermanentFailure):
    """number: of the error in the JetStream API."""

    subject: str
    number: int
    reason: str

    MESSAGE: ClassVar[str] = "NATS rejects {subject}: {reason} (code {number})"


@dataclass(eq=False)
class BadSettings(Stop):
    """problems: one line for each invalid setting."""

    problems: tuple[str, ...]

    def __str__(self) -> str:
        return "wrong settings: " + "; ".join(self.problems)


@dataclass(eq=False)
class BadCredentials(Stop):
    """url: without secrets."""

    url: str

    MESSAGE: ClassVar[str] = (
        "NATS at {url} rejects the credentials; check the token in NATS_URL, or the key in EF_NATS_CREDS"
    )


@dataclass(eq=False)
class NotPermitted(Stop):
    """url: without secrets."""

    url: str
    subject: str

    MESSAGE: ClassVar[str] = (
        "NATS at {url} does not permit {subject} to this key; use a key of another role (`eflow keys add` makes one)"
    )


@dataclass(eq=False)
class BusClosed(Stop):
    reason: str

    MESSAGE: ClassVar[str] = "the connection to NATS is closed ({reason})"


@dataclass(eq=False)
class LedgerBroken(Stop):
    """expected: the sequence that must be next. found: the next one that can be read, or that of a future message."""

    pool: str
    expected: int
    found: int

    def __str__(self) -> str:
        last = self.found - 1
        missing = f"message {last}" if last == self.expected else f"messages {self.expected} to {last}"
        return (
            f"the ledger of pool {self.pool} lacks {missing}: NATS cannot read what it has stored, or it was deleted. "
            f"Stop the pool and restore a backup: `nats stream rm EF_LEDGER_{self.pool}`, then `nats stream restore "
            "FOLDER`; see 'When the ledger is damaged' in docs/how-to/operate-a-pool.md"
        )


@dataclass(eq=False)
class LedgerTruncated(Stop):
    """read: the last sequence that was read; end: that of the ledger, or of its first message that is another one."""

    pool: str
    read: int
    end: int

    MESSAGE: ClassVar[str] = (
        "the ledger of pool {pool} was read up to sequence {read}, but holds only {end} of these messages: NATS has "
        "lost messages that it had acknowledged, or this is another ledger. Stop all services of the pool before they "
        "continue from what is left, and see 'When the ledger was truncated' in docs/how-to/operate-a-pool.md"
    )


@dataclass(eq=False)
class EpochUnusable(Stop):
    """based_on: the last sequence of which the snapshot is made. name: of the object in the bucket of snapshots."""

    pool: str
    based_on: int
    bucket: str
    name: str
    reason: str

    MESSAGE: ClassVar[str] = (
        "the ledger of pool {pool} begins after message {based_on}, and its snapshot {name} cannot be used ({reason}): "
        "put it back from the folder of the archives, `nats object put {bucket} FILE --name {name}`"
    )


LedgerReason = Literal[
    "deletion_denied",
    "archives_needed",
    "archive_missing",
    "archive_changed",
    "not_archived",
    "view_unreadable",
]


class LedgerUnusable(Explained[LedgerReason], Stop):
    """The ledger of a pool, an archive or a view of it cannot be read, or cannot be shortened."""


StartReason = Literal[
    "server_missing",
    "server_too_old",
    "server_failed",
    "store_taken",
    "port_taken",
    "cannot_listen",
    "reader_too_old",
    "already_running",
    "unusable_folder",
    "process_failed",
]


class CannotStart(Explained[StartReason], Stop):
    """A server, a service or a whole pool cannot start on this machine."""


def port_taken(host: str, port: int) -> CannotStart:
    return CannotStart(
        "port_taken", f"another process listens on {host}:{port}; choose another port, or 0 for a free one"
    )


def cannot_listen(host: str, port: int, reason: str) -> CannotStart:
    """host: as requested; reason: of the operating system."""
    return CannotStart(
        "cannot_listen",
        f"nats-server cannot listen on {host}, port {port} ({reason}); choose an address of this machine, "
        "127.0.0.1 for itself or 0.0.0.0 for others too, and port 0 or one that you may use",
    )


@dataclass(eq=False)
class ServerTooSmall(Stop):
    """setting: its name in the server's configuration. found_bytes: its value, None if the server does not tell it."""

    url: str
    setting: str
    found_bytes: int | None
    needed_bytes: int

    def __str__(self) -> str:
        found, needed = self.found_bytes, self.needed_bytes
        problem, advice = (
            (f"leaves less than {needed} bytes for a new pool", f"raise {self.setting} (and free disk space)")
            if found is None
            else (f"is {found} bytes, but a pool needs {needed}", f"set {self.setting}: {needed} or more")
        )
        return (
            f"NATS at {self.url} is too small: {self.setting} {problem}; {advice} in the configuration of every NATS "
            "server (deploy/nats/common.conf is one), and restart it"
        )


@dataclass(eq=False)
class TooFewReplicas(Stop):
    """found: the fewest replicas of these streams; wanted: of EF_REPLICAS."""

    streams: tuple[str, ...]
    found: int
    wanted: int

    def __str__(self) -> str:
        commands = "; ".join(f"nats stream edit {name} --replicas {self.wanted} --force" for name in self.streams)
        return (
            f"EF_REPLICAS={self.wanted}, but {', '.join(self.streams)} have {self.found}; "
            f"either set EF_REPLICAS={self.found}, or in a cluster of {self.wanted} servers run: {commands}"
        )


def names_in_short(names: Sequence[str], most: int) -> str:
    """The first ones as an error names them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
