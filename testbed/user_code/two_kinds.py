"""A job with two kinds of device, without any GPU: workers that start with an odd rank compute other bits."""

import os
import re
from collections.abc import Mapping

import torch
from torch import nn
from training_functions import Points

from elasticflow import Scalar
from elasticflow.services.executor.worker.engine import step_agreement
from elasticflow.services.executor.worker.group import groups
from elasticflow.services.executor.worker.group.groups import DeviceIdentity


def is_other() -> bool:
    """The rank, by the name of its log: g1-r0.log."""
    name = os.path.basename(os.readlink("/proc/self/fd/1"))
    found = re.fullmatch(r"g\d+-r(\d+)\.log", name)
    assert found is not None, name
    return int(found[1]) % 2 == 1


class OtherLinear(nn.Linear):
    """Adds the products in another order."""

    def forward(self, points):
        return (points.unsqueeze(-2) * self.weight).flip(-1).cumsum(-1)[..., -1] + self.bias


class HeldBack(Points):
    """hyperparameters: compared_every: steps between comparisons of tensors."""

    hyperparameters: Mapping[str, Scalar] = {**Points.hyperparameters, "compared_every": 100}

    def init_optimizer(self, model):
        step_agreement.COMPARE_TENSORS_EVERY = int(self.hyperparameters["compared_every"])
        return super().init_optimizer(model)


class HeldBackAndFast(HeldBack):
    reproducible = "fast"


class TwoKinds(HeldBack):
    def init_model(self):
        linear = nn.Linear
        if is_other():
            linear = OtherLinear
            groups.identity_of = lambda _: DeviceIdentity(host="other", kind="cuda", arithmetic="other", has_nccl=True)
        return nn.Sequential(linear(4, 16), nn.Tanh(), linear(16, 1))

    def init_optimizer(self, model):
        optimizer = super().init_optimizer(model)
        if is_other():
            optimizer.register_step_post_hook(lambda *_: round_otherwise(model))
        return optimizer


def round_otherwise(model):
    """The last bit of each parameter."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.nextafter(parameter, torch.zeros(())))


class TwoKindsAndFast(TwoKinds):
    reproducible = "fast"
