"""Workers with equal states have equal fingerprints; those with different states do not."""

import pytest
import torch
from torch import nn

from elasticflow.services.executor.worker.steps.step_agreement import PARAMETERS_EVERY, fingerprint


def made(dtype=torch.float32, size=5):
    model = nn.Linear(size, 3).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def of(model, optimizer, iteration=PARAMETERS_EVERY):
    return fingerprint(optimizer, model.parameters(), iteration)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 5])
def test_one_flipped_bit_shows_when_parameters_are_compared(dtype, size):
    (model, optimizer), other = made(dtype, size), made(dtype, size)
    assert of(model, optimizer) == of(*other)
    model.bias.data.view(torch.uint8)[1] ^= 1
    assert of(model, optimizer) != of(*other)
    assert of(model, optimizer, 7) == of(*other, 7)


def test_another_learning_rate_shows_in_each_step():
    (model, optimizer), other = made(), made()
    optimizer.param_groups[0]["lr"] *= 1 + 1e-12
    assert of(model, optimizer, 7) != of(*other, 7)
