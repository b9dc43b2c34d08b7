"""Every subject of the bus, in one place."""

import re

PLAN = "plan"
# As NATS clients name the subjects on which they await replies, and as a server names those of another account.
_INBOX = re.compile(r"_INBOX(\.[A-Za-z0-9_-]+)+|_R_(\.[A-Za-z0-9_-]+)+")
_RESULTS = re.compile(
    r"ef\.results\.[A-Za-z0-9_-]+\.(?P<load>[A-Za-z0-9_=-]+)\.(?P<first>[0-9]{1,13})-(?P<last>[0-9]{1,13})"
)
_MAX_INBOX_LENGTH = 256  # a server closes the connection of a client that publishes on a subject of thousands


def submit(tenant: str, pool: str) -> str:
    """Commands of users: a work queue, shared by the replicas of admission."""
    return f"ef.submit.{tenant}.{pool}"


def quote(tenant: str, pool: str) -> str:
    """Requests for a quote; any replica of admission replies at once."""
    return f"ef.quote.{tenant}.{pool}"


def sender(subject: str) -> str:
    """The tenant that may publish on this subject of commands or quotes."""
    return subject.split(".")[2]


def answer(tenant: str, pool: str, job_id: str) -> str:
    """Replies of admission to one tenant. They may be lost; the ledger has every decision."""
    return f"ef.answer.{tenant}.{pool}.{job_id}"


def may_be_answered(tenant: str, pool: str, subject: str) -> bool:
    """Whether this tenant may ask for an answer on this subject: an inbox, or an answer subject of its own.

    A service may publish on other subjects too, so it must not let a sender choose one of them.
    """
    if len(subject) > _MAX_INBOX_LENGTH:
        return False
    answer_subject = rf"{re.escape(answer(tenant, pool, ''))}[A-Za-z0-9_-]+"
    return _INBOX.fullmatch(subject) is not None or re.fullmatch(answer_subject, subject) is not None


def reach(tenant: str, pool: str, node_id: str) -> str:
    """What a tenant asks the executor of a node about its own workers there. `sender` names the tenant."""
    return f"ef.reach.{tenant}.{pool}.{node_id}"


def reached(tenant: str, pool: str, node_id: str, session: str) -> str:
    """What the executor answers to one session of this tenant."""
    return f"ef.reached.{tenant}.{pool}.{node_id}.{session}"


def plan(pool: str) -> str:
    """Decisions, serialized by compare-and-set."""
    return f"ef.ledger.{pool}.{PLAN}"


def job(pool: str, job_id: str, node_id: str = "") -> str:
    """Events of a job. node_id: of the executor that reports; "": a service does. A node may use its own only."""
    return f"ef.ledger.{pool}.job.{job_id}" + (f".{node_id}" if node_id else "")


def load(pool: str, load_id: str) -> str:
    """Events of a padding load."""
    return f"ef.ledger.{pool}.load.{load_id}"


def node(pool: str, node_id: str) -> str:
    """Events of a node."""
    return f"ef.ledger.{pool}.node.{node_id}"


def epoch(pool: str) -> str:
    """The events that begin the epochs of the ledger."""
    return f"ef.ledger.{pool}.epoch"


def snapshot(pool: str, shape: str) -> str:
    """The events in which the monitor names its snapshots of one shape."""
    return f"ef.ledger.{pool}.snapshot.{shape}"


def telemetry(pool: str, node_id: str) -> str:
    """Heartbeats with step times, as NATS has stored them: see `put_value` of the bus."""
    return f"ef.telemetry.{pool}.{node_id}"


def every_node(pool: str) -> str:
    """The telemetry of a pool."""
    return f"ef.telemetry.{pool}.*"


def tasks(pool: str, load: str) -> str:
    """Bundles of a padding load: a work queue, shared by the executors. load: its `Load.bus_name`."""
    return f"ef.tasks.{pool}.{load}"


def results(pool: str, load: str, first: int, last: int) -> str:
    """The results of consecutive tasks of a padding load, both ends included. The first result of each task counts."""
    return f"ef.results.{pool}.{load}.{first}-{last}"


def every_result(pool: str, load: str = "*") -> str:
    """The results of one padding load, or of all."""
    return f"ef.results.{pool}.{load}.*"


def tasks_of_results(subject: str) -> tuple[str, int, int] | None:
    """The load's name, and the first and the last task whose results are stored on this subject; None on any other."""
    found = _RESULTS.fullmatch(subject)
    if found is None or int(found["first"]) > int(found["last"]):
        return None
    return found["load"], int(found["first"]), int(found["last"])


def dead_letter(pool: str, service: str) -> str:
    """Unreadable messages, with the reason."""
    return f"ef.dead.{pool}.{service}"
