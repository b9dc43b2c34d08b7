"""Trying harder before a job counts as not fitting: other orders and shapes of filling, then a linear program.

Greedy filling by deadline misses ways that other orders find: those near it by chance, those by how long each job can
still wait, and those by when a linear program over time does each job's work. Whatever is found is filled by the
same exact rules as any schedule; how much is tried is counted in orders, never in seconds, so that the same question
about the same plan has the same answer again (docs/adr/0017).
Axes: J = the newcomer, then the promised jobs; K = the rows to fill, by deadline.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from shared.scheduling.admission_plan import AdmissionPlan, Proposal
from shared.scheduling.compiled import Floats, Integers
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.lower_bound import demands
from shared.scheduling.relaxation import relax

MAX_ORDERS = 16  # around each of: deadlines, latest starts, the linear program
MAX_FILLINGS = 4_096  # of jobs in these, each filled once: in a large pool there are fewer orders
MAX_VARIABLES = 600  # of the linear program
SPREADS = (0.1, 0.3, 0.6, 1.0)  # of the logarithms of times: how far orders by chance go from it
SHORTEST_S = 1.0


class Insistence:
    """What can be promised beside a plan with more effort. promised(): its jobs, as `plan.promised` lists them."""

    def __init__(self, plan: AdmissionPlan, promised: Callable[[], Sequence[SchedulableJob]]) -> None:
        self._plan, self._promised = plan, promised

    def propose(self, job: SchedulableJob) -> Proposal | None:
        """A way to promise `job` too that makes no other job late, or None. Good until the plan changes."""
        return self._proposed(job, with_program=True)

    def propose_in_other_orders(self, job: SchedulableJob) -> Proposal | None:
        """The same without the linear program: for where many are asked after."""
        return self._proposed(job, with_program=False)

    def _proposed(self, job: SchedulableJob, *, with_program: bool) -> Proposal | None:
        proposal = self._plan.propose(job)
        if proposal is not None:
            return proposal
        with self._plan.trying(job) as row:
            order_K = self._plan.order_with(row)
            if self._plan.is_overloaded(row, order_K):
                return None
            for urgency_K in self._urgencies(job, row, order_K, with_program=with_program):
                if (proposal := self._around(job, row, order_K, urgency_K)) is not None:
                    return proposal
        return None

    def _urgencies(
        self, job: SchedulableJob, row: int, order_K: Integers, *, with_program: bool
    ) -> Iterator[Floats]:
        """Times from now in whose order to fill the jobs."""
        jobs = self._plan.table.jobs
        due_s_K = jobs.deadline_J[order_K] - self._plan.now_s
        yield due_s_K
        yield due_s_K - jobs.remaining_J[order_K] / jobs.rates_JL[order_K, jobs.num_levels_J[order_K] - 1]
        if with_program and (middle_s_K := self._middles(job, row, order_K)) is not None:
            yield middle_s_K

    def _around(self, job: SchedulableJob, row: int, order_K: Integers, urgency_K: Floats) -> Proposal | None:
        """Fill in this order, and in some near it by chance; in every other one the newcomer ends as soon as it can."""
        chance = np.random.default_rng(len(order_K))  # the same again for whoever takes a quote
        urgency_K = np.maximum(urgency_K, SHORTEST_S)
        for number in range(min(max(MAX_FILLINGS // len(order_K), 1), MAX_ORDERS)):
            spread = SPREADS[number % len(SPREADS)] if number else 0.0
            factor_K = np.exp(chance.normal(0.0, spread, len(order_K)))
            order = order_K[np.argsort(urgency_K * factor_K, kind="stable")]
            proposal = self._plan.propose_in_order(job, row, order, hurried=number % 2 == 1)
            if proposal is not None:
                return proposal
        return None

    def _middles(self, job: SchedulableJob, row: int, order_K: Integers) -> Floats | None:
        """The centre of each job's work in a linear program, in seconds from now; None if that proves that there is no
        way, or is not solved."""
        plan = self._plan
        asked = demands((job, *self._promised()), plan.num_gpus, plan.now_s, job.resize_cost).hopeful()
        asks_J = np.unique(asked.job_U)
        relaxation = relax(asked, max_variables=MAX_VARIABLES) if 0 in asks_J else None
        if relaxation is None or relaxation.load > 1.0:
            return None
        middle_s_B = (relaxation.instants_s[1:] + relaxation.instants_s[:-1]) / 2.0 - plan.now_s
        done_JB = relaxation.iterations_JB
        middle_s = np.zeros(plan.table.num_jobs)
        rows_J = np.append(row, plan.promised)[asks_J]
        middle_s[rows_J] = done_JB @ middle_s_B / np.maximum(done_JB.sum(1), 1e-9)
        return middle_s[order_K]
