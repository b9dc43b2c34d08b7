"""Room for many: all effort for jobs that ask for little of the pool, a few orders of filling for the others.

Who tries as hard as possible for every job meets fewer deadlines, since a large job that is squeezed in keeps out many
small ones. A job that asks for little keeps out hardly anybody (docs/adr/0029). Whether it does depends on the job and
the pool alone, never on what others asked for: with more time, less work or more GPUs it asks for no larger part.
"""

from dataclasses import replace

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.greedy import Greedy, lowered, narrowed
from shared.scheduling.insistence import MANY_FILLINGS, Insistence
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.proposal import Proposal
from shared.scheduling.quoting import earliest_deadline_around_s
from shared.scheduling.selection import least_gpu_seconds

LITTLE_PART = 1 / 32
"""Of the pool's GPU-seconds until the deadline."""


class Picky:
    """What can be promised beside a plan by a few orders, or, of a job that asks for little, by all effort."""

    def __init__(self, plan: AdmissionPlan, most_fillings: int = MANY_FILLINGS) -> None:
        self._plan = plan
        self._greedy, self._insistence = Greedy(plan), Insistence(plan, most_fillings)

    def propose(self, job: SchedulableJob) -> Proposal | None:
        """A way to promise `job` too that makes no other job late, or None. Good until the plan changes."""
        proposal = self._greedy.propose(job)
        if proposal is None and self.makes_all_effort_for(job):
            return self._insistence.propose(job)
        return proposal

    def makes_all_effort_for(self, job: SchedulableJob) -> bool:
        """For one that asks for little by its deadline."""
        plan = self._plan
        window_s = job.deadline_s - plan.now_s
        return least_gpu_seconds(job, plan.now_s) <= LITTLE_PART * plan.num_gpus * window_s

    def earliest_deadline_s(self, job: SchedulableJob) -> float | None:
        """In whole seconds: it is accepted now, and one second less is refused; None if none is. An even earlier one
        may exist."""
        around_s = earliest_deadline_around_s(self._plan, job)
        if around_s is None or not self.makes_all_effort_for(replace(job, deadline_s=around_s)):
            return self._greedy.earliest_deadline_s(job)
        accepted_s = self._insistence.earliest_deadline_s(job)
        if accepted_s is None:
            return None
        if not self.makes_all_effort_for(replace(job, deadline_s=accepted_s)):
            little_s = narrowed(self.makes_all_effort_for, job, accepted_s, around_s)
            greedy_s = self._greedy.earliest_deadline_s(job)
            accepted_s = little_s if greedy_s is None else min(greedy_s, little_s)
        return lowered(self._accepts, job, self._plan.now_s, accepted_s)

    def _accepts(self, job: SchedulableJob) -> bool:
        return self.propose(job) is not None
