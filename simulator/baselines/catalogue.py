"""The baselines by name."""

from collections.abc import Mapping

from simulator.baselines.baseline import Baseline
from simulator.baselines.chronus import Chronus
from simulator.baselines.edf import EarliestDeadlineFirst
from simulator.baselines.edf_admission import EarliestDeadlineFirstWithAdmission
from simulator.baselines.edf_elastic import EarliestDeadlineFirstElastic
from simulator.baselines.elastic_tiresias import ElasticTiresias
from simulator.baselines.gandiva import Gandiva
from simulator.baselines.pollux import Pollux
from simulator.baselines.static_priority import StaticPriority
from simulator.baselines.themis import Themis
from simulator.baselines.tiresias import Tiresias
from simulator.baselines.weighted_fair_sharing import WeightedFairSharing

_ALL: tuple[Baseline, ...] = (
    EarliestDeadlineFirst(),
    EarliestDeadlineFirstWithAdmission(),
    EarliestDeadlineFirstElastic(),
    Gandiva(),
    Tiresias(),
    ElasticTiresias(),
    Themis(),
    Chronus(),
    Pollux(),
    WeightedFairSharing(),
    StaticPriority(),
)

BASELINES: Mapping[str, Baseline] = {baseline.name: baseline for baseline in _ALL}
