"""Each event of a padding load as a sentence with numbers. Pure."""

from elasticflow.sdk.times import duration_in_words
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import LoadEvent
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.state.load import Load


def load_text(event: LoadEvent, load: Load | None) -> str:
    """The sentence for an event. load: after the event; None if none of this name was opened."""
    match event:
        case events.LoadOpened():
            return f"opened by {event.tenant}: {_tasks(event.spec)}; {_prediction(event.useful_share)}"
        case events.LoadRejected():
            return f"{event.tenant} requested it; rejected ({event.reason}): {event.explanation}"
        case events.LoadSealed():
            return f"sealed with {_counted(event.num_tasks)}"
        case events.SealRejected():
            return f"the request to seal it was rejected: {event.explanation}"
        case events.LoadProgressed():
            of = f" of {load.num_tasks:,}" if load is not None and load.num_tasks is not None else ""
            return f"results of {event.num_results:,}{of} tasks are stored"
        case events.LoadFinished():
            after = "" if load is None else f", {duration_in_words(event.at_s - load.opened_at_s)} after its opening"
            return f"finished: the results of {_counted(event.num_results)} are stored{after}"
        case events.LoadCancelled():
            num_results = 0 if load is None else load.num_results
            return f"cancelled after {num_results:,} results" + (f": {event.reason}" if event.reason else "")
        case events.CancelLoadRejected():
            return f"the request to cancel it was rejected: {event.explanation}"


def _tasks(spec: LoadSpec) -> str:
    """As "proteins:fold, tasks of 10.9 s with 2.8 s of overhead"."""
    overhead = f" with {spec.overhead_s:g} s of overhead" if spec.overhead_s else ""
    start_stop = f", {spec.start_stop_s:g} s to start and end a runner" if spec.start_stop_s else ""
    gpu_type = f", on {spec.gpu_type}" if spec.gpu_type else ""
    return f"{spec.task_function}, tasks of {spec.task_s:g} s{overhead}{start_stop}{gpu_type}"


def _prediction(useful_share: float | None) -> str:
    if useful_share is None:
        return "nothing is predicted, because no GPU was idle so far"
    return f"it is predicted to use {useful_share:.1%} of the idle GPU time"


def _counted(num_tasks: int) -> str:
    return f"{num_tasks:,} task{'' if num_tasks == 1 else 's'}"
