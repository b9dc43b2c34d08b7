"""Every subject of the bus, in one place."""

PLAN = "plan"


def submit(tenant: str, pool: str) -> str:
    """Commands of users: a work queue, shared by the replicas of admission."""
    return f"ef.submit.{tenant}.{pool}"


def quote(pool: str) -> str:
    """Requests for a quote; any replica of admission replies at once."""
    return f"ef.quote.{pool}"


def answer(pool: str, job_id: str) -> str:
    """Replies of admission to one sender. They may be lost; the ledger has every decision."""
    return f"ef.answer.{pool}.{job_id}"


def plan(pool: str) -> str:
    """Decisions, serialized by compare-and-set."""
    return f"ef.ledger.{pool}.{PLAN}"


def job(pool: str, job_id: str) -> str:
    """Events of a job."""
    return f"ef.ledger.{pool}.job.{job_id}"


def node(pool: str, node_id: str) -> str:
    """Events of a node."""
    return f"ef.ledger.{pool}.node.{node_id}"


def telemetry(pool: str, node_id: str) -> str:
    """Heartbeats and step times."""
    return f"ef.telemetry.{pool}.{node_id}"


def every_node(pool: str) -> str:
    """The telemetry of a pool."""
    return f"ef.telemetry.{pool}.*"


def dead_letter(pool: str, service: str) -> str:
    """Unreadable messages, with the reason."""
    return f"ef.dead.{pool}.{service}"
