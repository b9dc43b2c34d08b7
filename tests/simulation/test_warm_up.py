"""What `warm_up` compiles is all that any decision runs: the first one after an installation waits for no compiler."""

import importlib
import pkgutil
import subprocess
import sys

import elasticflow.shared.scheduling
from elasticflow.services.admission.policy import POLICY
from elasticflow.services.admission.quote import quote
from elasticflow.shared.messages.commands import AmendJob, QuoteDeadline, ReserveQuote
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.shared.scheduling.warm_up import warm_up
from elasticflow.simulator.baselines.policy_catalogue import AdmissionPolicy
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.failures_and_speed_noise import Deviations, Failures
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs
from testbed.histories import NOW_S, pool, spec, submit

WARM_UP_AND_DECIDE = (
    "from tests.simulation.test_warm_up import assert_nothing_is_compiled; assert_nothing_is_compiled()"
)


def decide_in_all_ways() -> None:
    """Yes and no to jobs of all classes under both policies, with failures and a reserve; quotes and amendments."""
    recipe = Recipe(num_jobs=60, cluster_gpus=8, load=4.0, soft_share=0.2, best_effort_share=0.2)
    workload = generate(recipe, read_throughputs(bundled_throughputs()), seed=1)
    configured: tuple[tuple[AdmissionPolicy, int], ...] = (("first-come", 0), ("selective", 1))
    for admission, reserve_nodes in configured:
        result = Simulation(
            workload,
            ClusterShape(num_nodes=2, gpus_per_node=4),
            TrainingModel(resize_cost=ResizeCost((1,), (5.0,))),
            SimulatedPool(admission=admission, reserve_nodes=reserve_nodes),
            Deviations(failures=Failures(seed=1, mean_up_s=36_000.0)),
        ).run()
        assert result.num_met() > 0
        assert result.numbers()["rejected"]
    asked = spec(deadline_s=None)
    history = pool(4)
    history.decided(POLICY, ReserveQuote(job_id="a", tenant="lab", spec=asked, reserve_s=60.0))
    assert quote(history.state, QuoteDeadline(tenant="lab", spec=asked), NOW_S).earliest_deadline_s
    history.decided(POLICY, submit("b", deadline_s=NOW_S + 300.0))
    history.decided(POLICY, AmendJob(job_id="b", tenant="lab", max_iterations=200))
    history.decided(POLICY, AmendJob(job_id="b", tenant="lab", deadline_s=NOW_S + 3.0))


def specialisations() -> set[tuple[str, object]]:
    """The compiled functions that this process has loaded or made, each with the types it was called with."""
    folder = pkgutil.walk_packages(elasticflow.shared.scheduling.__path__, "elasticflow.shared.scheduling.")
    functions = {
        function for module in folder for function in vars(importlib.import_module(module.name)).values()
        if hasattr(function, "nopython_signatures")
    }  # fmt: skip
    return {(function.__name__, types) for function in functions for types in function.signatures}


def assert_nothing_is_compiled() -> None:
    warm_up()
    warm = specialisations()
    assert warm
    decide_in_all_ways()
    assert specialisations() == warm


def test_no_decision_compiles_anything_after_the_warm_up() -> None:
    """In a process of its own: whatever a function was called with before would pass for warm."""
    subprocess.run([sys.executable, "-c", WARM_UP_AND_DECIDE], check=True)
