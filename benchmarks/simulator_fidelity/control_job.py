"""The control job, which holds one slot in every live run: its speed says whether the slots were isolated. Pure."""

from benchmarks.report import Measured, Row

MAX_CONTROL_CHANGE = 0.03  # of the control job's speed; beyond it other processes disturbed a run


def verdict(control_change: float | None) -> Measured:
    """control_change: how much faster it trained than in the run to compare with; None if it did not train.

    A void run says nothing about what it should measure.
    """
    is_void = control_change is None or abs(control_change) > MAX_CONTROL_CHANGE
    return {"control_change": control_change, "void": is_void}


def name_and_verdict(name: str, run: Measured) -> str:
    return f"{name} (void)" if run["void"] else name


def control_row(name: str, run: Measured, against: str) -> Row:
    change = "it did not train" if run["control_change"] is None else f"{run['control_change']:+.1%}"
    what = f"speed of the control job in {name_and_verdict(name, run)}"
    return Row(what, change, f"±{MAX_CONTROL_CHANGE:.0%}", f"against {against}")
