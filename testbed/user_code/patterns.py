"""Patterns of training, one job each, from which the reference page is made. Run by workers only.

The first line of a docstring names the pattern. Each job trains with the same bits on any number of workers, unless
tests/support/training_patterns.py has its refusal.
"""

import collections
import copy
import itertools
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import elasticflow

NUM_SAMPLES = 84


class Base(elasticflow.ElasticJob):
    """What all patterns here share. hyperparameters: hold: a file; while it exists, each step takes longer than the
    last, so that the job does not end before its workers have changed."""

    virtual_nodes = 4
    data_workers = 0
    hyperparameters = {"hold": ""}  # noqa: RUF012

    def __setattr__(self, name, value):
        if name == "iteration":  # the worker sets it before each step
            hold, until_s = str(self.hyperparameters["hold"]), time.monotonic() + 0.01 * 1.5**value
            while hold and Path(hold).exists() and time.monotonic() < until_s:
                time.sleep(0.002)
        super().__setattr__(name, value)

    def init_model(self):
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def init_dataset(self):
        torch.manual_seed(1)
        return TensorDataset(torch.randn(NUM_SAMPLES, 8), torch.randn(NUM_SAMPLES, 1))

    def init_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss(self, batch, model):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        loss = self.loss(batch, model)
        loss.backward()
        optimizer.step()
        return loss


# --- gradients ---


class ClippedNorm(Base):
    """Clipping by norm"""

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        loss = self.loss(batch, model)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss


class ClippedValue(Base):
    """Clipping by value"""

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        loss = self.loss(batch, model)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        return loss


class GradientPenalty(Base):
    """Gradient penalty, with `create_graph`"""

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        points = batch[0].requires_grad_()
        made = model(points)
        loss = nn.functional.mse_loss(made, batch[1])
        (slope,) = torch.autograd.grad(made.sum(), points, create_graph=True)
        (loss + 0.1 * (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
        return loss


class Closure(Base):
    """A closure, for an optimizer that calls it once"""

    def train(self, batch, model, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = self.loss(batch, model)
            loss.backward()
            return loss

        return optimizer.step(closure)


class NoSync(Base):
    """`no_sync()` of DistributedDataParallel"""

    def train(self, batch, model, optimizer):
        with model.no_sync():
            self.loss(batch, model).backward()
        return super().train(batch, model, optimizer)


# --- models ---


class Frozen(Base):
    """Frozen layers"""

    def init_model(self):
        model = super().init_model()
        model[0].requires_grad_(False)
        return model


class Unfreezing(Base):
    """Gradual unfreezing, by `requires_grad_`"""

    def init_model(self):
        model = super().init_model()
        model[0].requires_grad_(False)
        return model

    def train(self, batch, model, optimizer):
        model[0].requires_grad_(self.iteration >= 4)
        return super().train(batch, model, optimizer)


class GroupAddedLater(Base):
    """Gradual unfreezing, by a parameter group that `train` adds"""

    def init_optimizer(self, model):
        return torch.optim.AdamW(model[3].parameters(), lr=0.01)

    def train(self, batch, model, optimizer):
        if self.iteration == 2:
            optimizer.add_param_group({"params": model[0].parameters()})
        return super().train(batch, model, optimizer)


class TiedWeights(Base):
    """Tied weights"""

    def init_model(self):
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Linear(8, 1))
        model[2].weight = model[0].weight
        return model


class FrozenTeacher(Base):
    """Distillation from a frozen teacher in an attribute"""

    def init_model(self):
        self.teacher = super().init_model().eval().requires_grad_(False)
        return super().init_model()

    def loss(self, batch, model):
        return nn.functional.mse_loss(model(batch[0]), self.teacher(batch[0]))


class MomentumTeacher(Base):
    """Momentum teacher in `stateful`"""

    def init_model(self):
        model = super().init_model()
        self.teacher = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        return model

    def stateful(self):
        return {"teacher": self.teacher}

    def loss(self, batch, model):
        with torch.no_grad():
            target = self.teacher(batch[0])
        return nn.functional.mse_loss(model(batch[0]), batch[1] + target)

    def train(self, batch, model, optimizer):
        loss = super().train(batch, model, optimizer)
        self.teacher.update_parameters(model)
        return loss


class TeacherInAttribute(Base):
    """Momentum teacher in an attribute"""

    def init_model(self):
        model = super().init_model()
        self.teacher = copy.deepcopy(model).requires_grad_(False)
        return model

    def train(self, batch, model, optimizer):
        loss = super().train(batch, model, optimizer)
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        return loss


class Average(Base):
    """Exponential moving average of the weights"""

    def init_optimizer(self, model):
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        return super().init_optimizer(model)

    def stateful(self):
        return {"average": self.average}

    def train(self, batch, model, optimizer):
        loss = super().train(batch, model, optimizer)
        self.average.update_parameters(model)
        return loss


class StochasticAverage(Base):
    """Stochastic weight averaging"""

    def init_optimizer(self, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.average, self.schedule = AveragedModel(model), SWALR(optimizer, swa_lr=0.01, anneal_epochs=3)
        return optimizer

    def stateful(self):
        return {"average": self.average, "schedule": self.schedule}

    def train(self, batch, model, optimizer):
        loss = super().train(batch, model, optimizer)
        if self.iteration >= 5:
            self.average.update_parameters(model)
            self.schedule.step()
        return loss


class SpectralNorm(Base):
    """Spectral norm"""

    def init_model(self):
        model = super().init_model()
        nn.utils.parametrizations.spectral_norm(model[0])
        return model


class BatchNorm(Base):
    """BatchNorm, over each virtual node"""

    def init_model(self):
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))


class CenterInAttribute(Base):
    """A center of the outputs (DINO) in an attribute"""

    def init_model(self):
        self.center = torch.zeros(1)
        return super().init_model()

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        made = model(batch[0])
        loss = nn.functional.mse_loss(made - self.center, batch[1])
        loss.backward()
        optimizer.step()
        self.center = 0.9 * self.center + 0.1 * made.detach().mean(0)
        return loss


class CenterInBuffer(CenterInAttribute):
    """A center of the outputs (DINO) in a buffer of the model"""

    def init_model(self):
        model = super().init_model()
        model.register_buffer("center", torch.zeros(1))
        return model

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        made = model(batch[0])
        loss = nn.functional.mse_loss(made - model.center, batch[1])
        model.center.lerp_(made.detach().mean(0), 0.1)
        loss.backward()
        optimizer.step()
        return loss


class BatchNormOfOneSample(BatchNorm):
    """BatchNorm with one sample in a virtual node"""

    virtual_nodes = 12


class Recurrent(Base):
    """LSTM"""

    def init_model(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm, self.head = nn.LSTM(1, 8, num_layers=2, dropout=0.1, batch_first=True), nn.Linear(8, 1)

            def forward(self, points):
                return self.head(self.lstm(points.unsqueeze(2))[0][:, -1])

        return Model()


class Complex(Base):
    """Complex parameters"""

    def init_model(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(0.1 * torch.randn(8, 1, dtype=torch.complex64))

            def forward(self, points):
                return (points.to(torch.complex64) @ self.weight).abs()

        return Model()


class Checkpointed(Base):
    """Activation checkpointing"""

    def loss(self, batch, model):
        return nn.functional.mse_loss(checkpoint(model, batch[0], use_reentrant=False), batch[1])


class Compiled(Base):
    """`torch.compile`"""

    def init_model(self):
        model = super().init_model()
        model.compile()
        return model


class Lazy(Base):
    """Lazy modules"""

    def init_model(self):
        return nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 1))


class LazyWithInput(Base):
    """Lazy modules, after one forward pass"""

    def init_model(self):
        model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 1))
        model(torch.zeros(1, 8))
        return model


class ManualSeeds(Base):
    """Manual seeds"""

    def init_model(self):
        torch.manual_seed(7)
        return super().init_model()

    def train(self, batch, model, optimizer):
        torch.manual_seed(self.iteration)
        return super().train(batch, model, optimizer)


class FullySharded(Base):
    """`fully_shard` (FSDP)"""

    def init_model(self):
        return fully_shard(super().init_model())


class Wrapped(Base):
    """A model in DistributedDataParallel"""

    def init_model(self):
        return DistributedDataParallel(super().init_model())


class AllGather(Base):
    """`all_gather` of torch.distributed"""

    def loss(self, batch, model):
        made = model(batch[0])
        everywhere = [torch.zeros_like(made) for _ in range(dist.get_world_size())]
        dist.all_gather(everywhere, made)
        return nn.functional.mse_loss(made, batch[1])


# --- precision ---


class Bfloat16Autocast(Base):
    """bfloat16 autocast"""

    def loss(self, batch, model):
        with torch.autocast(batch[0].device.type, dtype=torch.bfloat16):
            return super().loss(batch, model)


class Bfloat16Parameters(Base):
    """bfloat16 parameters"""

    def init_model(self):
        return super().init_model().bfloat16()

    def loss(self, batch, model):
        return nn.functional.mse_loss(model(batch[0].bfloat16()).float(), batch[1])


# --- optimizers and schedules ---


class FusedAdamW(Base):
    """Fused AdamW"""

    def init_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


class OneCycle(Base):
    """OneCycleLR"""

    def init_optimizer(self, model):
        optimizer = super().init_optimizer(model)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
        return optimizer

    def stateful(self):
        return {"schedule": self.schedule}

    def train(self, batch, model, optimizer):
        loss = super().train(batch, model, optimizer)
        self.schedule.step()
        return loss


class Generative(Base):
    """GAN, with one optimizer of two parameter groups"""

    def init_model(self):
        return nn.ModuleDict({"generator": nn.Linear(4, 8), "discriminator": super().init_model()})

    def init_optimizer(self, model):
        groups = [{"params": each.parameters()} for each in model.values()]
        return torch.optim.Adam(groups, lr=0.01, betas=(0.5, 0.999))

    def train(self, batch, model, optimizer):
        generator, discriminator = model["generator"], model["discriminator"]
        made = generator(torch.randn(len(batch[0]), 4))
        optimizer.zero_grad()
        critic_loss = discriminator(made.detach()).mean() - discriminator(batch[0]).mean()
        critic_loss.backward()
        optimizer.step()  # the generator has no gradient, and stays
        optimizer.zero_grad()
        discriminator.requires_grad_(False)
        loss = -discriminator(made).mean()
        loss.backward()
        discriminator.requires_grad_(True)
        optimizer.step()
        return {"loss": loss, "critic": critic_loss}


class Lbfgs(Base):
    """LBFGS"""

    def init_optimizer(self, model):
        return torch.optim.LBFGS(model.parameters())


class SeveralReturned(Base):
    """Several optimizers that `init_optimizer` returns"""

    def init_optimizer(self, model):
        return [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model[0], model[3])]


class UnknownOptimizer(Base):
    """A further optimizer that `stateful` does not return"""

    def init_optimizer(self, model):
        self.other = torch.optim.SGD(model[0].parameters(), lr=0.1)
        return torch.optim.AdamW(model[3].parameters(), lr=0.01)

    def train(self, batch, model, optimizer):
        loss = super().train(batch, model, optimizer)
        self.other.step()
        return loss


class Plateau(Base):
    """ReduceLROnPlateau on the loss of one part"""

    def init_optimizer(self, model):
        optimizer = super().init_optimizer(model)
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        return optimizer

    def stateful(self):
        return {"schedule": self.schedule}

    def train(self, batch, model, optimizer):
        loss = super().train(batch, model, optimizer)
        self.schedule.step(loss)
        return loss


class PlateauOfBatch(Plateau):
    """ReduceLROnPlateau on the loss of the batch"""

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        loss = self.loss(batch, model)
        loss.backward()
        mean = elasticflow.mean(loss)
        optimizer.step()
        self.schedule.step(mean)
        return loss


class TwoOptimizers(Base):
    """Muon for matrices, AdamW for the rest"""

    def init_optimizer(self, model):
        self.adamw = torch.optim.AdamW([each for each in model.parameters() if each.dim() != 2], lr=0.01)
        return torch.optim.Muon([each for each in model.parameters() if each.dim() == 2], lr=0.01)

    def stateful(self):
        return {"adamw": self.adamw}

    def train(self, batch, model, optimizer):
        model.zero_grad()
        loss = self.loss(batch, model)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        self.adamw.step()
        return loss


class GenerativeOfTwo(Generative):
    """GAN, with two optimizers"""

    def init_optimizer(self, model):
        self.critic = torch.optim.Adam(model["discriminator"].parameters(), lr=0.01, betas=(0.5, 0.999))
        return torch.optim.Adam(model["generator"].parameters(), lr=0.01, betas=(0.5, 0.999))

    def stateful(self):
        return {"critic": self.critic}

    def train(self, batch, model, optimizer):
        generator, discriminator = model["generator"], model["discriminator"]
        made = generator(torch.randn(len(batch[0]), 4))
        self.critic.zero_grad()
        critic_loss = discriminator(made.detach()).mean() - discriminator(batch[0]).mean()
        critic_loss.backward()
        self.critic.step()
        optimizer.zero_grad()
        loss = -discriminator(made).mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "critic": critic_loss}


class Scaler(Base):
    """float16 with a GradScaler in `stateful`"""

    def init_optimizer(self, model):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)  # so large that it skips steps
        return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)

    def stateful(self):
        return {"scaler": self.scaler}

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        with torch.autocast(batch[0].device.type, dtype=torch.float16):
            loss = self.loss(batch, model)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        self.scaler.step(optimizer)
        self.scaler.update()
        return {"loss": loss, "scale": self.scaler.get_scale()}


class ScalerOfEachCall(Base):
    """A new GradScaler in each call"""

    def train(self, batch, model, optimizer):
        scaler = torch.amp.GradScaler("cpu")
        optimizer.zero_grad()
        loss = self.loss(batch, model)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss


class UndeclaredScaler(Base):
    """A GradScaler that `stateful` does not return"""

    def init_optimizer(self, model):
        self.scaler = torch.amp.GradScaler("cpu")
        return super().init_optimizer(model)

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        loss = self.loss(batch, model)
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()
        return loss


# --- losses of the whole batch ---


class Contrastive(Base):
    """A loss that compares all samples (CLIP, SimCLR)"""

    def init_model(self):
        return nn.ModuleDict(
            {"image": nn.Linear(8, 4), "text": nn.Linear(8, 4), "scale": nn.ParameterDict({"log": torch.zeros(())})}
        )

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        points, _ = batch
        images = nn.functional.normalize(model["image"](points), dim=1)
        texts = nn.functional.normalize(model["text"](nn.functional.dropout(points)), dim=1)
        images, texts = elasticflow.gather(images), elasticflow.gather(texts)
        similarity = model["scale"]["log"].exp() * images @ texts.T
        labels = torch.arange(len(similarity), device=similarity.device)
        cross_entropy = nn.functional.cross_entropy
        loss = (cross_entropy(similarity, labels) + cross_entropy(similarity.T, labels)) / 2
        loss.backward()
        optimizer.step()
        return loss


# --- gradients and parameters beside the ordinary ---


class Accumulation(Base):
    """Accumulation: several backward passes before a step"""

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        for part in zip(*(each.chunk(2) for each in batch), strict=True):
            loss = self.loss(part, model) * len(part[0]) / len(batch[0])
            loss.backward()
        optimizer.step()
        return loss


class TwoLosses(Base):
    """Two losses, each with its backward pass"""

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        made = model(batch[0])
        loss = nn.functional.mse_loss(made, batch[1])
        loss.backward(retain_graph=True)
        (0.1 * made.square().mean()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss


class PartOfTheModel(ClippedNorm):
    """Parameters outside of the optimizer, clipped with the others"""

    def init_optimizer(self, model):
        return torch.optim.AdamW([each for each in model.parameters() if each.dim() == 2], lr=0.01)


class AssignedGradients(Base):
    """`torch.autograd.grad` with assigned gradients"""

    def train(self, batch, model, optimizer):
        loss = self.loss(batch, model)
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        optimizer.step()
        return loss


class TeacherInModel(Base):
    """Momentum teacher in the model"""

    def init_model(self):
        online = super().init_model()
        return nn.ModuleDict({"online": online, "target": copy.deepcopy(online).requires_grad_(False)})

    def loss(self, batch, model):
        with torch.no_grad():
            target = model["target"](batch[0])
        return nn.functional.mse_loss(model["online"](batch[0]), batch[1] + target)

    def train(self, batch, model, optimizer):
        loss = super().train(batch, model, optimizer)
        with torch.no_grad():
            for slow, fast in zip(model["target"].parameters(), model["online"].parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        return loss


class NonPersistentBuffer(Base):
    """Non-persistent buffers"""

    def init_model(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 1)
                self.register_buffer("seen", torch.zeros(()), persistent=False)

            def forward(self, points):
                self.seen += 1
                return self.linear(points) / (1 + 0.01 * self.seen)

        return Model()


_settings = {"steps": 0}


class ClassWeights(Base):
    """A loss with weights of classes"""

    def init_model(self):
        return nn.Linear(8, 2)

    def loss(self, batch, model):
        labels = (batch[1][:, 0] > 0).long()
        return nn.functional.cross_entropy(model(batch[0]), labels, weight=torch.tensor([1.0, 5.0]))


class ClassWeightsOfWholeBatch(ClassWeights):
    """A loss with weights of classes, divided by those of the whole batch"""

    def loss(self, batch, model):
        labels = (batch[1][:, 0] > 0).long()
        weights = torch.tensor([1.0, 5.0])[labels]
        losses = nn.functional.cross_entropy(model(batch[0]), labels, reduction="none")
        return (losses * weights).mean() / elasticflow.mean(weights.mean())


class PlainState(Base):
    """Counters, lists and texts in attributes and in variables of the module"""

    steps = 0

    def init_model(self):
        self.losses, self.phase = [], "warm-up"
        return super().init_model()

    def train(self, batch, model, optimizer):
        type(self).steps += 1
        _settings["steps"] += 1
        self.phase = "usual" if self.steps > 10 else self.phase
        optimizer.zero_grad()
        loss = self.loss(batch, model) * (0.5 if self.phase == "usual" else _settings["steps"] / 20)
        self.losses.append(loss.item())  # of the last part of each batch
        (loss / (1 + sum(self.losses[-5:]))).backward()
        optimizer.step()
        return loss


class OwnGenerator(Base):
    """A random generator in an attribute"""

    def init_model(self):
        self.generator = torch.Generator().manual_seed(3)
        return super().init_model()

    def loss(self, batch, model):
        noise = torch.randn(batch[0].shape, generator=self.generator)
        return nn.functional.mse_loss(model(batch[0] + noise), batch[1])


class SecondLoader(Base):
    """A second loader, of which each call takes the next batch"""

    def init_model(self):
        loader = DataLoader(TensorDataset(torch.randn(40, 8)), batch_size=4)
        self.unlabeled = itertools.cycle(loader)
        return super().init_model()

    def loss(self, batch, model):
        (unlabeled,) = next(self.unlabeled)
        return super().loss(batch, model) + model(unlabeled).square().mean()


class Replay(Base):
    """A buffer of earlier samples"""

    def init_model(self):
        self.memory = collections.deque(maxlen=20)
        return super().init_model()

    def loss(self, batch, model):
        self.memory.append(batch[0][:1])
        return super().loss(batch, model) + model(torch.cat(list(self.memory))).square().mean()


class LayerAddedLater(Base):
    """A layer that `train` adds"""

    def train(self, batch, model, optimizer):
        if self.iteration == 0:
            model.append(nn.Linear(1, 1))
        return super().train(batch, model, optimizer)


class ParameterOfLoss(Base):
    """A parameter of the loss that only the optimizer has"""

    def init_optimizer(self, model):
        self.scale = nn.Parameter(torch.zeros(1))
        return torch.optim.AdamW([*model.parameters(), self.scale], lr=0.01)

    def loss(self, batch, model):
        return super().loss(batch, model) * self.scale.exp().squeeze() - self.scale.squeeze()


class ChangingSamples(Base):
    """A data set whose samples depend on what was read before"""

    def init_dataset(self):
        class Read(TensorDataset):
            count = 0

            def __getitem__(self, index):
                self.count += 1
                points, targets = super().__getitem__(index)
                return points + 0.01 * self.count, targets

        return Read(torch.ones(NUM_SAMPLES, 8), torch.ones(NUM_SAMPLES, 1))
