"""Problems of a job that are found before it is submitted: one line for each field. Pure."""

from elasticflow.shared.messages.commands import CancelJob, SubmitJob
from elasticflow.shared.messages.envelope.codec import validate
from elasticflow.shared.messages.gpu_limits import range_problem
from elasticflow.shared.messages.job_spec import JobClass, JobSpec

_NEEDED = {
    "global_batch_size": "a job needs one: set_hyperparameter(global_batch_size=...), or --batch",
    "max_iterations": "a job needs a number: term_condition(max_iterations=...), or --iterations",
}


def problems_of(spec: JobSpec, *, has_deadline: bool) -> list[str]:
    """Of an unchecked specification; [] if it can be submitted."""
    missing = {field: how for field, how in _NEEDED.items() if getattr(spec, field) is None}
    wrong = validate(SubmitJob(job_id="job", tenant="tenant", spec=spec))
    named = [problem.removeprefix("spec.") for problem in wrong]
    problems = [problem for problem in named if problem.partition(":")[0] not in missing]
    problems += [f"{field}: {how}" for field, how in missing.items()]
    needs_none = spec.job_class in (JobClass.BEST_EFFORT, JobClass.PADDING)
    if has_deadline and needs_none:
        problems.append(f"deadline: a {spec.job_class} job has none; the class soft tries to meet one")
    if not has_deadline and not needs_none:
        problems.append(f"deadline: a job of class {spec.job_class} needs one: set_deadline(...), or --deadline")
    is_range = not any(problem.startswith(("min_gpus", "max_gpus")) for problem in problems)
    if is_range and (empty := range_problem(spec.min_gpus, spec.max_gpus)) is not None:
        problems.append(f"min_gpus: {empty}")
    return problems


def problems_of_names(*, job_id: str, tenant: str) -> tuple[str, ...]:
    """Of a job's id and tenant; "" is replaced later."""
    return validate(CancelJob(job_id=job_id or "job", tenant=tenant or "tenant"))
