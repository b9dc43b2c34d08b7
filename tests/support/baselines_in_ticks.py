"""Baselines that start jobs only where a tick or slot begins, and leave GPUs idle until then."""

IN_TICKS = ("chronus-ticks", "themis-slots-60", "themis-slots-240")
