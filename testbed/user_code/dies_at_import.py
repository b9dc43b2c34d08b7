"""A module of a padding load that ends its process while it is imported by a runner, and by no one else."""

import os
import sys

if "elasticflow.services.executor.worker" in sys.modules and "pytest" not in sys.modules:
    os._exit(9)


def double(x):
    return 2 * x
