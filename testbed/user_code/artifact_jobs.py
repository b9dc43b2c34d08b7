"""A training job that leaves files in its artifact folder. Imported by workers only."""

import os
from collections.abc import Mapping

from torch import nn

from elasticflow import Scalar
from testbed.user_code.tiny_jobs import Steps


class Writes(Steps):
    """Writes a file, one that is larger than a test's bound, and a link to a file outside."""

    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 8, "step_s": 0.01, "large_bytes": 0}

    def init_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        folder = self.artifacts_folder
        (folder / "plots").mkdir(exist_ok=True)
        (folder / "plots" / "loss.csv").write_text("0,1.5\n")
        (folder / "large.bin").write_bytes(b"x" * int(self.hyperparameters["large_bytes"]))
        if not (folder / "passwd").is_symlink():
            os.symlink("/etc/passwd", folder / "passwd")
        return {"written": 1.0}
