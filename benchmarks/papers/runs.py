"""The simulated runs behind a claim, its measurement from their numbers, and what is missing where there is none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from benchmarks.papers.claims import QUANTITIES, Average, Claim, Contestant, Figure, Form, Setup
from benchmarks.papers.verdicts import Beside, Measurement, order_beside

PAPERS_OWN, OURS = "elasticflow-algorithms", "selective"
BOUND = Contestant(policy="bound")  # no policy: what any of them can meet with knowledge of the future


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The jobs of a trace, or of the published generator with a seed, and what is changed in them."""

    trace: str = ""
    num_jobs: int = 0
    mean_gap_s: float = 0.0
    seed: int = 0
    deadline_seed: int = 0
    deadline_over_duration: float | None = None
    best_effort_share: float | None = None

    @property
    def name(self) -> str:
        generated = f"generated-{self.num_jobs}-{self.mean_gap_s:g}-seed{self.seed}-deadlines{self.deadline_seed}"
        source = self.trace or generated
        tight = "" if self.deadline_over_duration is None else f"-due{self.deadline_over_duration:g}"
        share = "" if self.best_effort_share is None else f"-be{self.best_effort_share:g}"
        return source + tight + share


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Jobs on a number of GPUs under a policy. num_gpus, contestant: 0 and None if only the jobs are looked at."""

    jobs: Jobs
    num_gpus: int = 0
    contestant: Contestant | None = None

    @property
    def run_id(self) -> str:
        """Names a file."""
        if self.contestant is None:
            return self.jobs.name
        return f"{self.jobs.name}-{self.num_gpus}gpus-{self.contestant.policy}-{self.contestant.overhead}"


Pair = tuple[Run, Run | None]


def runs_of(claim: Claim) -> tuple[Pair, ...]:
    """The run of each trace or seed, and the one that it is compared with; none if no jobs are needed."""
    setup = claim.setup
    if setup is None or claim.needs:
        return ()
    return tuple(
        (
            Run(jobs=jobs, num_gpus=num_gpus, contestant=claim.contestant),
            Run(jobs=jobs, num_gpus=num_gpus, contestant=claim.against) if claim.against else None,
        )
        for jobs, num_gpus in _jobs_of(setup, with_policy=claim.contestant is not None)
    )


def _jobs_of(setup: Setup, *, with_policy: bool) -> Iterator[tuple[Jobs, int]]:
    changed = Jobs(deadline_over_duration=setup.deadline_over_duration, best_effort_share=setup.best_effort_share)
    sizes = setup.num_gpus_by_trace if with_policy else (0,) * max(len(setup.traces), 1)
    for trace, num_gpus in zip(setup.traces, sizes, strict=False):
        yield replace(changed, trace=trace), num_gpus
    if setup.generated is not None:
        generated = setup.generated
        jobs = replace(changed, num_jobs=generated.num_jobs, mean_gap_s=generated.mean_gap_s, seed=generated.seed)
        for seed in generated.deadline_seeds:
            yield replace(jobs, deadline_seed=seed), sizes[0]


def for_ours(claim: Claim) -> Claim | None:
    """The same claim with our policy in place of the paper's own; None if that does not run in it."""
    return _exchanged(claim, Contestant(policy=OURS))


def for_bound(claim: Claim) -> Claim | None:
    """The same claim with the bound in place of the paper's own policy; None if it is not about met deadlines."""
    return _exchanged(claim, BOUND) if claim.quantity == "deadline_satisfactory_ratio" else None


def as_described(claim: Claim) -> tuple[Claim, ...]:
    """The same claim with each policy that its paper describes in place of the published program's."""
    return tuple(replace(claim, contestant=Contestant(policy=name)) for name in claim.also)


def _exchanged(claim: Claim, other: Contestant) -> Claim | None:
    if claim.contestant is not None and claim.contestant.policy == PAPERS_OWN:
        return replace(claim, contestant=other)
    if claim.against is not None and claim.against.policy == PAPERS_OWN:
        return replace(claim, against=other)
    return None


def variants_of(claim: Claim) -> Iterator[Claim]:
    """The claim, and those that are shown beside it."""
    yield claim
    yield from (other for other in (for_ours(claim), for_bound(claim)) if other is not None)
    yield from as_described(claim)


def all_runs(claims: Iterator[Claim]) -> tuple[Run, ...]:
    """Each run once, in the order of the claims."""
    pairs = (pair for claim in claims for variant in variants_of(claim) for pair in runs_of(variant))
    return tuple(dict.fromkeys(run for pair in pairs for run in pair if run is not None))


# --- measurements from the numbers of runs -------------------------------------------------------------


Numbers = Mapping[str, float | None]
NumbersOf = Callable[[Run], Numbers | None]  # None: not run yet


def measured(claim: Claim, numbers_of: NumbersOf) -> Measurement | None:
    """The measurement; None if a run is missing, or a number is undefined in one of them."""
    pairs = runs_of(claim)
    values = [
        (_number(numbers_of(run), claim), _number(numbers_of(other), claim) if other else 1.0) for run, other in pairs
    ]
    known = [(value, other) for value, other in values if value is not None and other is not None]
    if not pairs or len(known) < len(values):
        return None
    if claim.form is Form.VALUE:
        return _spread([value for value, _ in known], mean(value for value, _ in known))
    if any(not other for _, other in known):
        return None
    quotients = [value / other for value, other in known]
    is_mean = claim.setup is not None and claim.setup.average is Average.MEAN_OF_RATIOS
    total = mean(quotients) if is_mean else sum(value for value, _ in known) / sum(other for _, other in known)
    if claim.form is Form.QUOTIENT:
        return _spread(quotients, total)
    return _spread([1.0 - quotient for quotient in quotients], 1.0 - total)


def _number(numbers: Numbers | None, claim: Claim) -> float | None:
    return None if numbers is None else numbers.get(claim.quantity)


def _spread(values: Sequence[float], value: float) -> Measurement:
    return Measurement(value=value, least=min(values), most=max(values))


def with_order(
    claim: Claim, measurement: Measurement | None, figure: Figure, numbers_of: NumbersOf
) -> Measurement | None:
    """The measurement beside those of the other claims whose order with this one counts."""
    if measurement is None or claim.form is not Form.VALUE:
        return measurement
    others = ((other, measured(other, numbers_of)) for other in order_beside(figure.claims, claim))
    beside = tuple(
        Beside(published=other.value, measured=found.value)
        for other, found in others
        if other.value is not None and found is not None
    )
    return replace(measurement, beside=beside)


def skipped_jobs(claim: Claim, numbers_of: NumbersOf) -> str:
    """How many jobs its traces lost, for a wrong row or a model without a table; "" if none."""
    numbers = {run.jobs.trace: numbers_of(run) for pair in runs_of(claim) for run in pair if run is not None}
    known = [(trace, found["jobs"] or 0, found.get("skipped") or 0) for trace, found in numbers.items() if found]
    parts = [f"{skipped:,.0f} of {jobs + skipped:,.0f} jobs of {trace}" for trace, jobs, skipped in known if skipped]
    return f"{' and '.join(parts)} are left out: wrong rows, or models without a table" if parts else ""


def missing(claim: Claim, numbers_of: NumbersOf, has: Callable[[Run], bool]) -> tuple[str, ...]:
    """Why there is no measurement."""
    if claim.needs:
        return claim.needs
    runs = [run for pair in runs_of(claim) for run in pair if run is not None]
    if absent := sorted({run.jobs.trace for run in runs if not has(run)}):
        return tuple(f"the trace {name}.csv in the folder of --traces" for name in absent)
    if not runs:
        return ("throughputs of that model, batch size and number of GPUs in the folder of --throughputs",)
    if to_do := sum(numbers_of(run) is None for run in dict.fromkeys(runs)):
        return (f"{to_do} of its runs, which --resume goes on with",)
    return (f"a run in which {QUANTITIES[claim.quantity].title} is defined",)
