"""What would change with one more promise."""

from dataclasses import dataclass

from shared.scheduling.compiled import Integers
from shared.scheduling.job_table import SchedulableJob, Schedule, schedule_of
from shared.scheduling.profile import Profile, Schedules


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """How one more job could be promised: the rows whose schedules change, its own last, and what stays free."""

    job: SchedulableJob
    rows: Integers
    found: Schedules  # of these rows, in their order
    profile: Profile

    @property
    def schedule(self) -> Schedule:
        """Its own."""
        return schedule_of(self.found, len(self.rows) - 1)

    @property
    def moved(self) -> dict[int, Schedule]:
        """Those of others that change, by row."""
        return {int(row): schedule_of(self.found, index) for index, row in enumerate(self.rows[:-1])}
