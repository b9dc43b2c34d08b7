"""A training job whose steps compute for some milliseconds, and log their begin and end."""

from torch import nn

from testbed.user_code.tiny_jobs import Steps


class Busy(Steps):
    """hyperparameters: step_s: seconds that each step sleeps besides."""

    def init_model(self):
        return nn.Sequential(nn.Linear(4, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
