"""Events, named in the past tense. Each docstring names the writer.

An event carries all that the fold needs, its own time (`at_s`) included: the state is a function of the ledger alone.
Import events from here. A new event is added to the union at the end of its file; its wire name, its ledger subject
and the strategies of the property tests follow from the unions.
"""

from elasticflow.shared.messages.commands import DeadlineQuoted, MessageRejected
from elasticflow.shared.messages.events.admission import *  # noqa: F403  # noqa: F403
from elasticflow.shared.messages.events.admission import AdmissionEvent
from elasticflow.shared.messages.events.jobs import *  # noqa: F403
from elasticflow.shared.messages.events.jobs import JobEvent
from elasticflow.shared.messages.events.loads import *  # noqa: F403
from elasticflow.shared.messages.events.loads import LoadDecision as LoadDecision
from elasticflow.shared.messages.events.loads import LoadEvent as LoadEvent
from elasticflow.shared.messages.events.loads import LoadReport
from elasticflow.shared.messages.events.nodes import *  # noqa: F403
from elasticflow.shared.messages.events.nodes import NodeEvent, NodeFenced, NodeReported
from elasticflow.shared.messages.events.planning import *  # noqa: F403
from elasticflow.shared.messages.events.planning import EpochBegan, PlanEvent, SnapshotSaved

Event = PlanEvent | NodeEvent | JobEvent | LoadReport | EpochBegan | SnapshotSaved
Reply = AdmissionEvent | DeadlineQuoted | MessageRejected  # to the sender of a command
Telemetry = NodeReported | NodeFenced  # never in the ledger
