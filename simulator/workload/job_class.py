"""Three columns of any trace, one of which may say 1 for a job that asks for no promise."""

from shared.messages.job import JobClass
from simulator.workload.table import Row

CLASSES = {
    "best_effort": JobClass.BEST_EFFORT,
    "soft_deadline": JobClass.SOFT,
    "padding": JobClass.PADDING,
}


def job_class_of(row: Row) -> JobClass:
    """Raises BadInput where a row says two of them."""
    chosen = [column for column in CLASSES if row.flag(column)]
    if len(chosen) > 1:
        raise row.refusal(chosen[1], f"cannot be 1 beside {chosen[0]}; choose one")
    return CLASSES[chosen[0]] if chosen else JobClass.SLO
