"""One decision of admission on all GPU types: a session for each type, and one for what concerns none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.commands import id_of
from elasticflow.shared.messages.events import AdmissionEvent
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.gpu_types import part_after, parts, spec_on
from elasticflow.shared.state.pool import PoolState, spec_of


@dataclass(frozen=True, slots=True)
class SessionsByType:
    """whole: has the events of the decision, and plans nothing. by_type: each plans the part of its type.

    A pool of one type is its only part (docs/adr/0047).
    """

    whole: AdmissionSession
    by_type: Mapping[str, AdmissionSession]

    @staticmethod
    def start(state: PoolState, now_s: float, cache: PlanningCache) -> "SessionsByType":
        """Sessions without events."""
        by_type = {
            gpu_type: AdmissionSession.start(part, now_s, cache.of_type(gpu_type), state)
            for gpu_type, part in parts(state).items()
        }
        return SessionsByType(AdmissionSession.start(state, now_s, cache), by_type)

    @property
    def state(self) -> PoolState:
        """The whole pool, with all events of this decision."""
        return self.whole.state

    def ready(self, gpu_type: str, spec: JobSpec) -> AdmissionSession:
        """The session of the type, with a curve for the GPU range of a submitted spec."""
        session = self.by_type[gpu_type]
        return fast_replace(session, state=with_profile(session.state, spec_on(self.state, spec, gpu_type)))

    def on_job(self, job_id: str, decide: Callable[[AdmissionSession], AdmissionSession]) -> "SessionsByType":
        """Decide in the session that plans the job; in that of the whole pool, which plans nothing, if it is not
        live."""
        job = self.state.live_jobs.get(job_id)
        if job is None:
            return self.after_whole(decide(self.whole))
        gpu_type = spec_of(job).gpu_type
        return self.after_type(gpu_type, decide(self.by_type[gpu_type]))

    def with_session(self, gpu_type: str, session: AdmissionSession) -> "SessionsByType":
        """With what the session of a type has learned; its events are given up."""
        learned = _on_part(session, self.by_type[gpu_type].state, self.state)
        return SessionsByType(self.whole, {**self.by_type, gpu_type: learned})

    def after_whole(self, whole: AdmissionSession) -> "SessionsByType":
        """After a command that plans nothing."""
        job_ids = set(_named_jobs(whole.events[len(self.whole.events) :]))
        by_type = {
            gpu_type: _on_part(session, part_after(whole.state, session.state, gpu_type, job_ids), whole.state)
            for gpu_type, session in self.by_type.items()
        }
        return SessionsByType(fast_replace(whole, pool=whole.state), by_type)

    def after_type(
        self, gpu_type: str, session: AdmissionSession, events: Sequence[AdmissionEvent] | None = None
    ) -> "SessionsByType":
        """After a command on a job of this type. events: those for the ledger, if not those of the session."""
        whole = self.whole
        for event in session.events if events is None else events:
            whole = whole.with_event(event)
        return SessionsByType(self.whole, {**self.by_type, gpu_type: session}).after_whole(whole)


def _on_part(session: AdmissionSession, part: PoolState, pool: PoolState) -> AdmissionSession:
    """The session on the newest state, without events. A plan that was made stays the plan."""
    planned_state = part if session.planned is None else session.planned_state
    return fast_replace(session, pool=pool, state=part, planned_state=planned_state, events=())


def _named_jobs(events: Sequence[AdmissionEvent]) -> Iterator[str]:
    """The jobs that these events may change. Events about padding loads name none, and an id of a load does no harm."""
    for event in events:
        yield id_of(event)
        yield from getattr(event, "replanned", ())
