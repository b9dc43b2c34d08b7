"""The bus over NATS JetStream."""

from elasticflow.shared.library_imports import import_when_used

import_when_used("aiohttp")  # by nats-py, for ws:// only: a fifth of the start of a command
