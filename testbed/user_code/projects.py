"""Whole projects as their authors write them: NAME [virtual nodes]. They print what their authors see at the end.

Run by workers, and outside a job. While a file `slow_down` exists, each pass takes a while, so that no job ends during
the changes of a test. A file `die` ends one worker of `module` in the last step of an epoch.
"""

import copy
import json
import os
import signal
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

NUM_SAMPLES, BATCH_SIZE, LAST = 100, 20, 30
EPOCHS = LAST * BATCH_SIZE // NUM_SAMPLES
SLOW_DOWN_S = 0.03
VIRTUAL_NODES = int(sys.argv[2]) if __name__ == "__main__" and len(sys.argv) > 2 else 0
IS_IN_ORDER = VIRTUAL_NODES == 1  # to compare it with the library alone


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, num_samples: int = NUM_SAMPLES, seed: int = 5) -> None:
        self.x = torch.randn(num_samples, 8, generator=torch.Generator().manual_seed(seed))
        self.labels = (self.x.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.labels[index]}


class Net(nn.Module):
    """Its temperature falls with each pass of the training. The body is frozen at first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        dropout = nn.Dropout(0.0 if IS_IN_ORDER else 0.1)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), dropout)
        self.head = nn.Linear(16, 2)
        self.temperature, self.passes = 2.0, 0
        self.train_body(False)

    def train_body(self, trains: bool) -> None:
        for parameter in self.body.parameters():
            parameter.requires_grad_(trains)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if self.training:
            self.temperature, self.passes = max(1.0, self.temperature * 0.98), self.passes + 1
            if Path("slow_down").exists():
                time.sleep(SLOW_DOWN_S)
        logits = self.head(self.body(x)) / self.temperature
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


def show(**seen: Any) -> None:
    print("\nSEEN", json.dumps(seen))


def loader() -> DataLoader[Any]:
    return DataLoader(Rows(), batch_size=BATCH_SIZE, shuffle=not IS_IN_ORDER)


def trainer() -> None:
    """A subclass of Trainer, with callbacks for a history, unfreezing, and a momentum teacher that the loss needs."""
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

    from elasticflow.adapters.transformers import elastic_trainer

    class History(TrainerCallback):
        def __init__(self) -> None:
            self.calls: dict[str, int] = defaultdict(int)
            self.losses: list[float] = []

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.calls["epoch"] += 1
            if self.calls["epoch"] == 3:
                kwargs["model"].train_body(True)

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.calls["begun"] += 1

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.calls["ended"] += 1

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            self.losses += [logs["loss"]] if "loss" in logs else []

    class Teacher(TrainerCallback):
        def __init__(self, model: nn.Module) -> None:
            self.model = copy.deepcopy(model).eval().requires_grad_(False)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for mine, other in zip(self.model.parameters(), kwargs["model"].parameters(), strict=True):
                mine.mul_(0.9).add_(other.detach(), alpha=0.1)

        def state_dict(self) -> Any:
            return self.model.state_dict()

        def load_state_dict(self, state: Any) -> None:
            self.model.load_state_dict(state)

    class Distilling(Trainer):
        weight = 1.0

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            made = model(**inputs)
            with torch.no_grad():
                target = teacher.model(**inputs)["logits"].softmax(-1)
            loss = made["loss"] + self.weight * cross_entropy(made["logits"], target)
            self.weight *= 0.97 if model.training else 1.0
            return (loss, {"loss": loss, **made}) if return_outputs else loss

    model = Net()
    history, teacher = History(), Teacher(model)
    args = TrainingArguments(
        output_dir="trained",
        max_steps=LAST,
        per_device_train_batch_size=BATCH_SIZE,
        learning_rate=0.05,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_steps=4,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        metric_for_best_model="accuracy",
        label_names=["labels"],
        train_sampling_strategy="sequential" if IS_IN_ORDER else "random",
    )
    trainer = Distilling(
        model=model,
        args=args,
        train_dataset=Rows(),
        eval_dataset=Rows(30, 9),
        compute_metrics=lambda made: {"accuracy": float((made.predictions.argmax(-1) == made.label_ids).mean())},
        callbacks=[history, teacher, EarlyStoppingCallback(early_stopping_patience=5)],
    )
    trainer = elastic_trainer(trainer, virtual_nodes=VIRTUAL_NODES)
    ended = trainer.train()
    torch.save(model.state_dict(), "model.pt")
    # by step: a worker that goes on behind an evaluation may have noted it twice
    logged = {each["step"]: each["eval_accuracy"] for each in trainer.state.log_history if "eval_accuracy" in each}
    seen = {
        "step": trainer.state.global_step,
        "calls": history.calls,
        "losses": history.losses,
        "logged": logged,
    }
    seen |= {"best": trainer.state.best_metric, "best step": trainer.state.best_global_step}
    show(**seen, mean=ended.training_loss, weight=trainer.weight, passes=model.passes, temperature=model.temperature)


def module() -> None:
    """A module with hooks and lists, a schedule by the validation, early stopping, and an average of the weights."""
    import pytorch_lightning
    from pytorch_lightning.callbacks import EarlyStopping

    from elasticflow.adapters.lightning import elastic_trainer

    class Average(pytorch_lightning.Callback):
        """Validates the average of the weights, as the callbacks do that everyone copies."""

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self.shadow = copy.deepcopy(pl_module.state_dict())

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *batch: Any) -> None:
            losses.append(float(outputs["loss"]))
            for name, value in pl_module.state_dict().items():
                if value.is_floating_point():
                    self.shadow[name].lerp_(value, 0.1)

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            self.mine = copy.deepcopy(pl_module.state_dict())
            pl_module.load_state_dict(self.shadow)

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            pl_module.load_state_dict(self.mine)

        def state_dict(self) -> Any:
            return {"shadow": self.shadow}

        def load_state_dict(self, state_dict: Any) -> None:
            self.shadow = state_dict["shadow"]

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.scale, self.indices = Net(), 1.5, list[int]()
            self.history = list[float]()

        def on_train_epoch_start(self) -> None:
            self.scale *= 0.9
            self.net.train_body(self.current_epoch >= 2)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.indices.append(batch_idx)
            if batch_idx == NUM_SAMPLES // BATCH_SIZE - 1:
                with suppress(FileNotFoundError):
                    Path("die").rename("dead")
                    os.kill(os.getpid(), signal.SIGKILL)
            loss = self.net(**batch)["loss"] * self.scale
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("validated", self.net(**batch)["loss"])

        def on_validation_epoch_end(self) -> None:
            self.history.append(self.trainer.callback_metrics["validated"].item())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "validated"}}

    losses, average, stopping = list[float](), Average(), EarlyStopping("validated", patience=3)
    trainer = pytorch_lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        gradient_clip_val=0.5,
        callbacks=[average, stopping],
    )
    trainer = elastic_trainer(trainer, virtual_nodes=VIRTUAL_NODES)
    made = Module()
    trainer.fit(made, loader(), DataLoader(Rows(30, 9), batch_size=15))
    torch.save(made.net.state_dict(), "model.pt")
    seen = {"step": trainer.global_step, "epoch": trainer.current_epoch, "losses": losses, "indices": made.indices}
    seen |= {"history": made.history, "scale": made.scale, "best": stopping.best_score.item()}
    seen |= {"waited": stopping.wait_count, "rate": trainer.optimizers[0].param_groups[0]["lr"]}
    show(**seen, average=sum(each.double().sum().item() for each in average.shadow.values()))


class Meter:
    def __init__(self) -> None:
        self.sum = self.count = 0

    def update(self, value: float) -> None:
        self.sum, self.count = self.sum + value, self.count + 1


def loop() -> None:
    """A loop as in the examples of torch: timers, meters, an evaluation, a BatchNorm that does not train."""
    import elasticflow

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches, began, timed, best = loader(), time.monotonic(), Meter(), 0.0
    batches = elasticflow.elastic(batches, model, optimizer, virtual_nodes=VIRTUAL_NODES)
    for epoch in batches.epochs(EPOCHS):
        model.train()
        model.body[1].eval()
        if epoch == 2:
            model.train_body(True)
        epoch_began = end = time.perf_counter()
        for batch in batches:
            loss = model(**batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            timed.update(time.perf_counter() - end)
            end = time.perf_counter()
        model.eval()
        for batch in DataLoader(Rows(30, 9), batch_size=15):
            with torch.no_grad():
                outputs = model(**batch)["logits"]
            best = max(best, (outputs.argmax(1) == batch["labels"]).float().mean().item())
        took = time.perf_counter() - epoch_began
    torch.save(model.state_dict(), "model.pt")
    is_timed = timed.sum > 0 and took > 0 and time.monotonic() > began
    show(passes=model.passes, temperature=model.temperature, best=best, steps=timed.count, is_timed=is_timed)


def refused(what: str) -> None:
    """Settings of Lightning and Accelerate that a job cannot keep."""
    import pytorch_lightning
    from accelerate import Accelerator
    from pytorch_lightning import callbacks

    from elasticflow.adapters.accelerate import elastic
    from elasticflow.adapters.lightning import elastic_trainer

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = self.net(**batch)["loss"]
            self.log("loss", loss, on_epoch=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    if what == "tracker":
        model, accelerator = Net(), Accelerator(cpu=True, log_with="tensorboard", project_dir="runs")
        elastic(accelerator, loader(), model, torch.optim.AdamW(model.parameters()))
        return
    settings: dict[str, Any] = {
        "best": {"callbacks": [callbacks.ModelCheckpoint(monitor="loss")]},
        "stopping": {"callbacks": [callbacks.EarlyStopping("loss_epoch")]},
        "timer": {"callbacks": [callbacks.Timer("00:01:00:00")]},
    }[what]
    trainer = pytorch_lightning.Trainer(max_epochs=1, accelerator="cpu", enable_progress_bar=False, **settings)
    elastic_trainer(trainer).fit(Module(), loader())


if __name__ == "__main__":
    torch.set_num_threads(1)
    name = sys.argv[1]
    if name.startswith("refused "):
        refused(name.removeprefix("refused "))
    else:
        {"trainer": trainer, "module": module, "loop": loop}[name]()
