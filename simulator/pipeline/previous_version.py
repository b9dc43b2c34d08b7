"""Services of the previous version in a simulated pool whose services are upgraded one after the other.

A newer planner writes what an older one cannot read. The older one then takes no decisions (docs/adr/0036). Executors
and the monitor are upgraded before: they may not pass over a decision.
"""

from collections.abc import Callable
from typing import Any

from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.ledger_encoding import read_message
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable

UPGRADED = "upgraded"  # the end of the name of each process that has replaced one of the previous version
PLANNERS = ("admission", "allocator", "placement")


def is_of_planner(stored: LedgerRecord) -> bool:
    """Whether this is a decision of admission, the allocator or placement."""
    on_plan = stored.subject == subjects.plan(stored.subject.split(".")[2])
    return on_plan and stored.message_id.partition("-")[0] in PLANNERS


def is_of_upgraded(stored: LedgerRecord) -> bool:
    """Whether a planner of the new version has decided this: the name of its process is in the message's id."""
    return is_of_planner(stored) and stored.message_id.rpartition("-")[0].endswith(UPGRADED)


def read_as_before(stored: LedgerRecord) -> LedgerMessage:
    """What the previous version knows of a message."""
    if is_of_upgraded(stored):
        return Unreadable(on_plan=True, problems=("version: PlanDecided 2 is newer than 1, upgrade this reader",))
    return read_message(stored)


def host_before(make_host: Callable[..., Host[Any]]) -> Callable[..., Host[Any]]:
    """Makes hosts of the previous version. They use no snapshot, which newer services make."""
    return lambda **options: make_host(**options | {"read": read_as_before, "snapshot": None})
