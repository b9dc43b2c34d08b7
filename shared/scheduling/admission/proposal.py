"""The changes that one more promise would make to a plan."""

from dataclasses import dataclass

from elasticflow.shared.scheduling.availability.availability_profile import AvailabilityProfile, Schedules
from elasticflow.shared.scheduling.compiled.compile import Integers
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, Schedule, schedule_of


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

    @property
    def moved(self) -> dict[int, Schedule]:
        """The changed schedules of other jobs, by row."""
        return {int(row): schedule_of(self.found, index) for index, row in enumerate(self.rows[:-1])}
