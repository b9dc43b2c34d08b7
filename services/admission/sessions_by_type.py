"""One decision of admission on a pool with several GPU types: a session for each type, and one for the whole pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.events import AdmissionEvent
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.profiles import with_range
from elasticflow.shared.state.gpu_types import part_of_type, parts, spec_on
from elasticflow.shared.state.pool import PoolState


@dataclass(frozen=True, slots=True)
class SessionsByType:
    """whole: has the events of the decision, and plans nothing. by_type: each plans the part of its type."""

    whole: AdmissionSession
    by_type: Mapping[str, AdmissionSession]

    @staticmethod
    def start(state: PoolState, now_s: float, cache: PlanningCache | None = None) -> "SessionsByType":
        cache = PlanningCache() if cache is None else cache
        by_type = {
            gpu_type: AdmissionSession.start(part, now_s, cache.of_type(gpu_type))
            for gpu_type, part in parts(state).items()
        }
        return SessionsByType(AdmissionSession.start(state, now_s, cache), by_type)

    def ready(self, gpu_type: str, spec: JobSpec) -> AdmissionSession:
        """The session of the type, with a curve for the GPU range of a submitted spec."""
        session = self.by_type[gpu_type]
        return fast_replace(session, state=with_range(session.state, spec_on(self.whole.state, spec, gpu_type)))

    def with_session(self, gpu_type: str, session: AdmissionSession) -> "SessionsByType":
        """With what the session of a type has learned; its events are given up."""
        return SessionsByType(self.whole, {**self.by_type, gpu_type: _on_part(session, self.whole.state, gpu_type)})

    def after_whole(self, whole: AdmissionSession) -> "SessionsByType":
        """After a command that plans nothing."""
        by_type = {name: _on_part(session, whole.state, name) for name, session in self.by_type.items()}
        return SessionsByType(whole, by_type)

    def after_type(
        self, gpu_type: str, session: AdmissionSession, events: Sequence[AdmissionEvent] | None = None
    ) -> "SessionsByType":
        """After a command on a job of this type. events: those for the ledger, if not those of the session."""
        whole = self.whole
        for event in session.events if events is None else events:
            whole = whole.with_event(event)
        return SessionsByType(self.whole, {**self.by_type, gpu_type: session}).after_whole(whole)


def _on_part(session: AdmissionSession, state: PoolState, gpu_type: str) -> AdmissionSession:
    """The session on the newest state, without events. A plan that was made stays the plan."""
    part = part_of_type(state, gpu_type)
    planned_state = part if session.planned is None else session.planned_state
    return fast_replace(session, state=part, planned_state=planned_state, events=())
