"""Planned times and promised times, and the one place that puts the slack between them.

A promised time is what users read: a deadline of a job, a quote or an offer. A planned time is what schedules are
made for: `deadline_slack_s` earlier, so that the last evaluation and the last report of a job fit before its
deadline.
"""

import math
from typing import NewType

from elasticflow.shared.state.pool import PoolState

PlannedTime = NewType("PlannedTime", float)
"""Seconds since the epoch, as schedules count them. A promised time is a plain float."""


def planned_deadline_s(state: PoolState, deadline_s: float | None) -> PlannedTime:
    """The end to plan for, given a promised deadline; inf without one."""
    return PlannedTime(math.inf if deadline_s is None else deadline_s - state.config.deadline_slack_s)


def promised_deadline_s(state: PoolState, planned_s: PlannedTime) -> float:
    """The deadline to promise for a job that is planned to end by then."""
    return planned_s + state.config.deadline_slack_s
