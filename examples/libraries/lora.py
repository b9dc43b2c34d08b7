"""LoRA with PEFT and the Hugging Face Trainer: small adapters of a frozen language model, by itself or as a job."""

import os
from pydoc_data.topics import topics

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from elasticflow.adapters.transformers import elastic_trainer

CONTEXT = 32  # bytes


def windows() -> list[dict[str, torch.Tensor]]:
    """Consecutive parts of the help texts that ship with Python."""
    text = torch.tensor(list("\n".join(topics.values()).encode()))
    return [{"input_ids": window, "labels": window} for window in text.split(CONTEXT)[:-1]]


def pretrained() -> GPT2LMHeadModel:
    """Stands in place of `from_pretrained`: the same weights on each worker, without a download."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "n_positions": CONTEXT, "n_embd": 32, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))


def main() -> None:
    held_out, train_set = windows()[:64], windows()[64:]
    layers = ["c_attn", "c_fc", "c_proj"]
    lora = LoraConfig(r=8, lora_alpha=64, lora_dropout=0.05, target_modules=layers, fan_in_fan_out=True)
    model = get_peft_model(pretrained(), lora)
    args = TrainingArguments(output_dir="trained", max_steps=40, per_device_train_batch_size=32, learning_rate=0.03)
    trainer = Trainer(model=model, args=args, train_dataset=train_set)
    trainer = elastic_trainer(trainer)
    trainer.train()
    print(f"held-out loss {trainer.evaluate(held_out)['eval_loss']:.3f}")
    model.save_pretrained(os.environ.get("EF_ARTIFACTS", "trained"))  # the adapters, which `eflow fetch` brings back


if __name__ == "__main__":
    main()
