"""The changes that one more promise would make to a plan."""

from collections.abc import Sequence
from dataclasses import dataclass

from elasticflow.shared.messages.share_schedule import ShareSchedule
from elasticflow.shared.scheduling.availability.availability_profile import AvailabilityProfile, Schedules
from elasticflow.shared.scheduling.compiled.compile import Integers
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, Schedule, flat_schedules, schedule_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """How one more job can be promised: the rows whose schedules change (its own last), and what stays free."""

    job: SchedulableJob
    rows: Integers
    found: Schedules  # of these rows, in their order
    availability: AvailabilityProfile

    @property
    def schedule(self) -> Schedule:
        """The schedule of the new job."""
        return schedule_of(self.found, len(self.rows) - 1)

    def moved(self, job_ids: Sequence[str]) -> dict[str, ShareSchedule]:
        """The changed schedules of other jobs, by job, flat as in events. job_ids: of all rows of the plan."""
        others: list[int] = self.rows[:-1].tolist()
        schedules = flat_schedules(self.found, range(len(others)))
        return {job_ids[row]: schedule for row, schedule in zip(others, schedules, strict=True)}
