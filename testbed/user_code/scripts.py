"""Scripts for tests, one for each argument with which this file is started. Run by workers only."""

import argparse
import atexit
import contextlib
import math
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import BatchSampler, DataLoader, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.dataset import Dataset
from training_functions import NUM_SAMPLES, SLOW_DOWN_S, Branching, Counter, Noisy, Numbered, Points, UnsizedStream

import elasticflow


def stateful() -> None:
    """Like training_functions.Stateful, but with its own loop. One worker dies if a file `die` exists. While a file
    `slow_down` exists, each step takes longer than the last."""
    model = Branching()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loader = elasticflow.elastic(DataLoader(Noisy(), shuffle=True, num_workers=1), model, optimizer)
    for _ in loader.epochs(1000):
        for _, points, targets in loader:
            for group in optimizer.param_groups:
                group["lr"] = 0.05 / (1 + 0.1 * loader.iteration)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(points), targets)
            loss.backward()
            if Path("slow_down").exists():
                time.sleep(SLOW_DOWN_S * loader.iteration**2)
            with contextlib.suppress(FileNotFoundError):
                Path("die").rename("dead")
                os.kill(os.getpid(), signal.SIGKILL)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad += 1e-4 * torch.randn_like(parameter)
            optimizer.step()


def additional_state() -> None:
    """Like training_functions.WithAdditionalState."""
    model = Branching()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    steps_begun = Counter()
    loader = elasticflow.elastic(
        DataLoader(Noisy(), shuffle=True, num_workers=1), model, optimizer, schedule, average, steps_begun
    )
    for _ in loader.epochs(1000):
        for _, points, targets in loader:
            steps_begun.count += 1
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(points), targets)
            loss.backward()
            optimizer.step()
            schedule.step()
            average.update_parameters(model)


def streams() -> None:
    """Train for a number of epochs of a data set without a length. While a file `slow_down` exists, each step
    takes longer than the last."""
    model = Branching()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loader = elasticflow.elastic(DataLoader(UnsizedStream(), num_workers=2), model, optimizer)
    for _ in loader.epochs(int(sys.argv[2])):
        for _, points, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(points), targets)
            loss.backward()
            if Path("slow_down").exists():
                time.sleep(SLOW_DOWN_S * loader.iteration**2)
            optimizer.step()
    try:
        length = str(len(loader))
    except TypeError as error:
        length = str(error)
    print(f"trained {loader.iteration} steps: {length}")


def plateau() -> None:
    """A schedule by the loss of one part of the batch."""
    model = Branching()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for _, points, targets in elasticflow.elastic(DataLoader(Noisy()), model, optimizer, schedule):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        optimizer.step()
        schedule.step(loss)


def averages_in_a_variable() -> None:
    """An average of the weights, as it is often written."""
    model = Branching()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    shadow = {name: each.detach().clone() for name, each in model.named_parameters()}
    for _, points, targets in elasticflow.elastic(DataLoader(Noisy()), model, optimizer):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(points), targets).backward()
        optimizer.step()
        for name, each in model.named_parameters():
            shadow[name].lerp_(each.detach(), 0.1)


def makes_batches() -> None:
    job = Points()
    model = job.init_model()
    elasticflow.elastic(DataLoader(UnsizedStream(), batch_size=None), model, job.init_optimizer(model))


class Opened(Dataset):
    """Numbered, if its process has been prepared for reading."""

    def __init__(self) -> None:
        self.numbered = Numbered()
        self.scale = 0.0

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int):
        assert self.scale, "worker_init_fn has not been called in this process"
        number, point, target = self.numbered[index]
        return number, self.scale * point, target


SCALE = 1.0  # which Scaled reads


class Scaled(Numbered):
    """Samples that follow from a global, from an attribute and from labels that a loop may change."""

    def __init__(self) -> None:
        super().__init__()
        self.settings, self.labels, self.known = {"scale": 1.0}, torch.ones(NUM_SAMPLES), dict[int, torch.Tensor]()

    def __getitem__(self, index: int):
        if index not in self.known:
            self.known[index] = super().__getitem__(index)[1] * SCALE * self.settings["scale"]
        return self.known[index], self.labels[index]


def changes_data() -> None:
    """Change what the data set reads, in its third epoch; or only evaluate over it, which fills its cache."""
    global SCALE
    data = Scaled()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = elasticflow.elastic(DataLoader(data, shuffle=True, num_workers=1), model, optimizer)
    for epoch in loader.epochs(4):
        match sys.argv[2]:
            case "global" if epoch == 2:
                SCALE = 3.0
            case "held" if epoch == 2:
                data.settings["scale"] = 3.0
            case "labels" if epoch == 2:
                data.labels *= -1
            case _:
                pass
        for points, labels in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(points).squeeze(-1), labels).backward()
            optimizer.step()
        with torch.no_grad():
            assert sum(len(points) for points, _ in loader) == NUM_SAMPLES
    assert len(data.known) == NUM_SAMPLES


def sampled() -> None:
    """HOW the loader orders its samples; their indices go to the file `seen`. One worker dies as in `stateful`."""
    how = sys.argv[2]
    data = Opened() if how == "subset" else Numbered()

    def opened(process: int) -> None:
        data.scale = 2.0

    settings = {
        "in order": {},
        "subset": {"sampler": SubsetRandomSampler(range(35)), "num_workers": 2, "worker_init_fn": opened},
        "weighted": {
            "sampler": WeightedRandomSampler([float(i % 5 == 0) for i in range(NUM_SAMPLES)], 45, replacement=True),
            "batch_size": 8,
            "drop_last": True,
        },
        "batch_sampler": {"batch_sampler": [[0, 1], [2]]},
        "entropy": {"sampler": SubsetRandomSampler(sorted(range(NUM_SAMPLES), key=lambda _: os.urandom(8)))},
        "batches": {"batch_sampler": BatchSampler(range(30), 4, True)},
    }
    model = Branching()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loader = elasticflow.elastic(DataLoader(data, **settings[how]), model, optimizer)
    for epoch in loader.epochs(1000):
        for numbers, points, targets in loader:
            with Path("seen").open("a") as file:
                file.write(" ".join(map(str, [loader.iteration, epoch, *numbers.tolist()])) + "\n")
            optimizer.zero_grad()
            nn.functional.mse_loss(model(points), targets).backward()
            if Path("slow_down").exists():
                time.sleep(SLOW_DOWN_S * loader.iteration**2)
            optimizer.step()
    print(f"an epoch has {len(loader)} iterations")


def cannot_load() -> None:
    elasticflow.elastic(DataLoader(Noisy()), Branching(), None, object())


class Short:
    """The objects that training needs, in short form."""

    def __init__(self) -> None:
        job = Points()
        self.model = job.init_model()
        self.optimizer = job.init_optimizer(self.model)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [5, 20, 20])
        self.num_samples = 0  # of the present batch
        loader = DataLoader(job.init_dataset(), shuffle=True)
        self.loader = elasticflow.elastic(loader, self.model, self.optimizer, self.schedule)

    def losses(self):
        for _ in self.loader.epochs(10**6):
            for _, points, targets in self.loader:
                self.num_samples = len(points)
                yield nn.functional.mse_loss(self.model(points), targets)


def schedule_by_steps() -> None:
    job = Short()
    for loss in job.losses():
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()
        job.schedule.step()
    print(f"last epoch of the schedule: {job.schedule.last_epoch}")


def cosine() -> None:
    """STEPS in the schedule, which steps EVERY step, epoch or number of steps; EPOCHS in the loop."""
    steps, every, epochs = int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    job = Points()
    model = job.init_model()
    optimizer = job.init_optimizer(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    known = [] if every == "unknown" else [schedule]
    loader = elasticflow.elastic(DataLoader(job.init_dataset(), shuffle=True), model, optimizer, *known)
    for _ in loader.epochs(epochs):
        for _, points, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(points), targets).backward()
            optimizer.step()
            if every != "epoch" and (not every.isdigit() or loader.iteration % int(every) == 0):
                schedule.step()
        if every == "epoch":
            schedule.step()
    print(f"last rate {schedule.get_last_lr()[0]:.6f}")


def too_big() -> None:
    """Its memory holds one sample at a time from the sixth step on."""
    job = Short()
    for loss in job.losses():
        if job.loader.iteration >= 5 and job.num_samples > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()


def raises() -> None:
    for _ in Short().losses():
        raise RuntimeError("no more of this")


def steps_a_new_optimizer() -> None:
    job = Short()
    optimizer: torch.optim.Optimizer = job.optimizer
    for loss in job.losses():
        optimizer.zero_grad()
        loss.backward()
        if job.loader.iteration == 2:
            optimizer = torch.optim.SGD(job.model.parameters(), lr=0.01)
        optimizer.step()


def steps_two_optimizers() -> None:
    """As a GAN does. PASSED: both to elastic(), or one."""
    first, second = nn.Linear(4, 1), nn.Linear(4, 1)
    one, other = (torch.optim.SGD(each.parameters(), lr=0.01) for each in (first, second))
    both = nn.ModuleList([first, second])
    further = [other] if sys.argv[2] == "passed" else []
    loader = elasticflow.elastic(DataLoader(Points().init_dataset(), shuffle=True), both, one, *further)
    for _ in loader.epochs(10**6):
        for _, points, _ in loader:
            for part, optimizer in ((second, other), (first, one)):
                part(points).mean().backward()
                optimizer.step()


def resets_a_layer() -> None:
    """WHERE: at the top of an epoch, or at its end."""
    model = Branching()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = elasticflow.elastic(DataLoader(Noisy(), shuffle=True), model, optimizer)
    for epoch in loader.epochs(1000):
        if sys.argv[2] == "top" and epoch == 1:
            model.extra.reset_parameters()
        for _, points, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(points), targets).backward()
            if Path("slow_down").exists():
                time.sleep(SLOW_DOWN_S * loader.iteration**2)
            optimizer.step()
        if sys.argv[2] == "end" and epoch == 1:
            model.extra.reset_parameters()


def changes_modules() -> None:
    """WHAT it changes, once, in a step or at the top of an epoch: attributes of modules of torch, or the modules."""
    what, model, crit = sys.argv[2], Branching(), nn.HuberLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = elasticflow.elastic(DataLoader(Noisy(), shuffle=True), model, optimizer)
    for epoch in loader.epochs(1000):
        if what == "attributes" and epoch == 1:
            crit.delta = 0.5
        for _, points, targets in loader:
            is_due = loader.iteration == 2
            if what == "attributes" and is_due:
                crit.delta = 0.1
                model.body[3].p = 0.6
            if what == "loss" and is_due:
                crit = nn.HuberLoss(delta=0.1)
            if what == "layer" and is_due:
                model.body[2] = nn.Sigmoid()
            if what == "hook" and is_due:
                model.body.register_forward_hook(lambda _module, _inputs, output: 2 * output)
            if what == "method" and is_due:
                model.body[2].forward = torch.relu
            optimizer.zero_grad()
            crit(model(points), targets).backward()
            if Path("slow_down").exists():
                time.sleep(SLOW_DOWN_S * loader.iteration**2)
            optimizer.step()


def accumulates() -> None:
    job = Short()
    for number, loss in enumerate(job.losses()):
        loss.backward()
        if number % 4 == 3:
            job.optimizer.step()


def breaks() -> None:
    job = Short()
    for loss in job.losses():
        loss.backward()
        job.optimizer.step()
        break


def leaves_late() -> None:
    """By a counter of its own, which counts alike in all passes of a step; or by that of the job."""
    job, counts, counts_itself = Short(), list[int](), "own" in sys.argv
    for loss in job.losses():
        loss.backward()
        job.optimizer.step()
        counts.append(0)
        if (len(counts) if counts_itself else job.loader.iteration) == 15:
            break


def names_a_port() -> None:
    """Listen as tutorials do; two workers of a node cannot both listen on it."""
    os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"})
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=size)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        model(torch.ones(4, 2)).mean().backward()
        optimizer.step()
    torch.distributed.barrier(torch.distributed.new_group([*range(size)]))
    torch.distributed.destroy_process_group()


def spawns() -> None:
    """Spawn as tutorials do, for a machine with two GPUs."""
    torch.multiprocessing.spawn(print, args=(2,), nprocs=2, join=True)


def never_trains() -> None:
    sys.exit(0)


def raises_at_once() -> None:
    raise ValueError("nothing to train")


def exits() -> None:
    sys.exit(3)


def takes_arguments() -> None:
    argparse.ArgumentParser(prog="train").parse_args(["--widht", "8"])


def counts_by_itself() -> None:
    """It would loop forever in a worker that joins late."""
    job = Short()
    steps = 0
    while steps < 10**6:
        for _, points, targets in job.loader:
            nn.functional.mse_loss(job.model(points), targets).backward()
            job.optimizer.step()
            steps += 1


num_steps = 0


class OwnLoop:
    """A loop with its own counters, in variables, a dict and an attribute. While a file `slow_down` exists, each step
    takes longer than the last."""

    def __init__(self) -> None:
        self.model = Branching()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.loader = elasticflow.elastic(DataLoader(Noisy(), shuffle=True), self.model, self.optimizer)
        self.best, self.state = 10.0, {"steps": 0}

    def step(self, points: torch.Tensor, targets: torch.Tensor, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate * 0.98 ** self.state["steps"]
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(points), targets)
        (loss / self.best).backward()
        if Path("slow_down").exists():
            time.sleep(SLOW_DOWN_S * self.loader.iteration**2)
        self.optimizer.step()
        self.state["steps"] += 1
        self.best = min(self.best, loss.item())


def own_counters() -> None:
    global num_steps
    loop, rate = OwnLoop(), 0.05
    for epoch in loop.loader.epochs(1000):
        num_in_epoch, running = 0, 0.0
        for index, (_, points, targets) in enumerate(loop.loader):
            loop.step(points, targets, rate)
            num_steps += 1
            num_in_epoch = num_in_epoch + 1
            running += loop.best / num_in_epoch
            rate = 0.05 / (1 + 0.01 * (num_steps + index + epoch + num_in_epoch + running))
            assert index == num_in_epoch - 1
    assert num_steps == loop.state["steps"] == loop.loader.iteration, "each step counts once"


def evaluates_over_its_loader() -> None:
    """Sum all targets after each epoch and after the last step, as plain Python does; count samples meanwhile."""
    data = Noisy()
    everything = sum(float(data[index][2].sum()) for index in range(len(data)))
    model = Branching()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = elasticflow.elastic(DataLoader(data, shuffle=True), model, optimizer)
    num_samples = 0

    def total() -> float:
        return sum(float(targets.sum()) for _, _, targets in loader)

    for _ in loader.epochs(1000):
        for _, points, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(points), targets).backward()
            optimizer.step()
            num_samples += len(points)
        with torch.no_grad():
            assert math.isclose(total(), everything, rel_tol=1e-4)
            assert [index for index, _ in enumerate(loader)] == [*range(len(loader))]
    loader.report(total=total(), everything=everything)


def adds_up_losses() -> None:
    """Let the mean loss of each epoch decide about the rate and the end, and write it, as on one device. While a file
    `slow_down` exists, each step takes longer than the last. One worker dies behind its step if a file `die` exists."""
    model = Branching()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.3)
    loader = elasticflow.elastic(DataLoader(Noisy(), shuffle=True), model, optimizer, schedule)
    history: list[float] = []
    best, last, num_close = math.inf, math.nan, 0
    for _ in loader.epochs(6):
        total, num_steps = 0.0, 0
        for _, points, targets in loader:
            optimizer.zero_grad()
            iteration, outputs = loader.iteration, model(points)
            loss = nn.functional.mse_loss(outputs, targets)
            loss.backward()
            if Path("slow_down").exists():
                time.sleep(SLOW_DOWN_S * loader.iteration**2)
            optimizer.step()
            if loader.iteration > iteration:
                with contextlib.suppress(FileNotFoundError):
                    Path("die").rename("dead")
                    os.kill(os.getpid(), signal.SIGKILL)
            last = loss.item()
            total, num_steps = total + last, num_steps + 1
            num_close += int(((outputs - targets).abs() < 1.0).sum())
        history.append(total / num_steps)
        schedule.step(total / num_steps)
        best = min(best, total / num_steps)
    with Path("history.txt").open("a") as file:
        print(history, file=file)
    loader.report(best=best, last=last, rate=optimizer.param_groups[0]["lr"])


def some_epochs() -> None:
    """As many as are said."""
    job = Short()
    for _ in job.loader.epochs(int(sys.argv[2])):
        for _, points, targets in job.loader:
            job.optimizer.zero_grad()
            nn.functional.mse_loss(job.model(points), targets).backward()
            job.optimizer.step()


def begins_later() -> None:
    """Depend from some epoch on on the last loss of each sample, which is no state. Or let the loss be a weighted mean
    from then on, or a sum that is divided by the batch."""
    what = sys.argv[2]
    job, last_losses = Short(), torch.ones(NUM_SAMPLES)
    plain, weighted = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(torch.tensor([1.0, 5.0]))
    for epoch in job.loader.epochs(5):
        for indices, points, targets in job.loader:
            losses = (job.model(points) - targets).square().mean(1)
            loss = losses.mean()
            if what == "samples":
                loss = (losses * last_losses[indices]).mean() if epoch >= 1 else loss
                last_losses[indices] = losses.detach()
            elif what == "weights":
                logits = torch.cat([job.model(points), -job.model(points)], 1)
                loss = (weighted if epoch >= 3 else plain)(logits, (targets[:, 0] > 0).long())
            elif what == "sum":
                loss = losses.sum() / 16
            job.optimizer.zero_grad()
            loss.backward()
            job.optimizer.step()


def trains_in_two_loops() -> None:
    """The second one may be a plain loop over the loader."""
    job = Short()

    def train() -> None:
        for _, points, targets in job.loader:
            nn.functional.mse_loss(job.model(points), targets).backward()
            job.optimizer.step()

    for _ in job.loader.epochs(1):
        train()
    for _ in range(1) if "plain" in sys.argv else job.loader.epochs(2):
        train()


def top_of_epoch() -> None:
    """Change settings of the optimizer, a schedule and a buffer before the loop of each epoch, as on one device. While
    a file `slow_down` exists, each step takes longer than the last."""
    model = Branching()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    constant = model.constant.clone()
    loader = elasticflow.elastic(DataLoader(Noisy(), shuffle=True), model, optimizer, schedule)
    for epoch in loader.epochs(1000):
        if epoch:
            schedule.step()
            optimizer.param_groups[0]["weight_decay"] /= 2
        model.constant = model.constant + 1.0 if epoch % 2 else model.constant.add_(1.0)
        for _, points, targets in loader:
            settings = optimizer.param_groups[0]
            assert math.isclose(settings["lr"], 0.05 * 0.9**epoch), f"{settings['lr']} in epoch {epoch}"
            assert settings["weight_decay"] == 0.5 / 2**epoch, f"{settings['weight_decay']} in epoch {epoch}"
            assert torch.allclose(model.constant, constant + 1.0 + epoch), f"{model.constant} in epoch {epoch}"
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(points) * model.constant.sum(), targets)
            loss.backward()
            if Path("slow_down").exists():
                time.sleep(SLOW_DOWN_S * loader.iteration**2)
            optimizer.step()


def leaves_notes() -> None:
    """Record in files when its `finally` block and its exit handler run. It trains by `elastic()`, as a torchrun
    script whose rank 1 waits in a collective, or not at all, until it is ended."""
    atexit.register(Path(f"exit handler {os.environ['RANK']}").touch)
    try:
        {"elastic": _trains_elastically, "torchrun": _trains_with_peers, "prepares": _prepares}[sys.argv[2]]()
    finally:
        Path(f"finally {os.environ['RANK']}").touch()


def _trains_elastically() -> None:
    for loss in (job := Short()).losses():
        loss.backward()
        job.optimizer.step()


def _trains_with_peers() -> None:
    torch.distributed.init_process_group("gloo")
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    while True:
        if int(os.environ["RANK"]) == 0 and parameter.grad is not None:
            time.sleep(3600)
        parameter.grad = torch.ones(1)
        torch.distributed.all_reduce(parameter.grad)
        optimizer.step()


def _prepares() -> None:
    Path("prepares").touch()
    time.sleep(3600)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
