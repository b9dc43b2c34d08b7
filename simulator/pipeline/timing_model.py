"""How long things take in the simulated pool, and how fast jobs really are."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.simulator.timing.training_time import TrainingTime

START = TrainingTime.of_cost(ResizeCost.flat(1.0), stop_s=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingModel:
    """true_curves: iterations/s by profile and number of GPUs; in between, those of the next smaller number.

    num_virtual_nodes: of each job, which computes them in the fast mode.
    slow_profiles_s: seconds of each profiling run of a profile that takes longer than others; inf: it hangs.
    """

    true_curves: Mapping[str, Mapping[int, float]]
    num_virtual_nodes: int = 16
    dataset_size: int = 1 << 20  # samples
    listen_s: float = 0.1  # from rank 0's process to its open port
    training: TrainingTime = START  # restart: from the last worker that joins to the first step
    stop_s: float = 0.1  # for the checkpoint at the boundary
    profile_s: float = 0.6
    slow_profiles_s: Mapping[str, float] = field(default_factory=dict[str, float])
    checkpoint_every_s: float = 5.0
    report_every_s: float = 0.5
    install_s: float = 0.0  # from the order to start a worker until the packages that its job requires are there
    give_up_s: float = 10.0  # a worker ends if its peers do not join by then, or by the end of their installation
    peer_lost_s: float = 0.05
    leave_s: float = 0.05  # from the switch to the end of the leaving workers
