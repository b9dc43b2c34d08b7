"""One training script as `torchrun` starts it, and the same as an elastic job: docs/existing-code.md."""
