"""Training libraries whose own loop becomes elastic: Hugging Face Trainer, Accelerate, Lightning.

In a job, one pass through a library's loop is one step on the global batch. Its training step runs once for each
virtual node of the worker; clipping, the optimizer, schedules and callbacks run once. Outside a job, adapters change
nothing.
No module here imports its library: an adapter takes the user's objects, and subclasses what it gets.
"""
