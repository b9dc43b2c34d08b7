"""A client that maps, on the in-memory bus: who may feed a load, and what happens during outages."""

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from elasticflow.client import loads
from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.errors import LoadNotOpened, Undecided
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.shared.errors import ElasticFlowError, Unavailable
from elasticflow.shared.messages import events, subjects
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.padding_tasks import ResultBatch, TaskResult, encode_results
from elasticflow.shared.runtime.bus.load_lease import has_load_lease
from elasticflow.shared.runtime.bus.memory.broker import MemoryBroker
from elasticflow.shared.runtime.bus.memory.bus import MemoryBus
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.replica import open_replica
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from tests.support.shared_pool import add_result, next_of, stored_results

POOL = "p"
SPEC = LoadSpec(task_function="jobs.fold:fold", task_s=1.0)
