"""What train() has made of the optimizer's settings is taken back with its step."""

import torch

from services.executor.worker.optimizer_settings import restore, settings_of


def test_a_step_that_is_taken_back_leaves_the_optimizers_settings_as_they_were():
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=rate, betas=(0.9, 0.99))
    before = settings_of(optimizer)
    rate.fill_(0.5)
    optimizer.param_groups[0]["weight_decay"] = 0.3
    restore(optimizer, before)
    (group,) = optimizer.param_groups
    assert (float(group["lr"]), group["betas"], group["weight_decay"]) == (
        float(torch.tensor(0.1)),
        (0.9, 0.99),
        0,
    )
    assert len(group["params"]) == 1
