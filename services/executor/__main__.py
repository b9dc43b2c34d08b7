"""`python -m services.executor`"""

from services.executor.service import serve
from shared.runtime.service import run_service

if __name__ == "__main__":
    run_service("executor", serve)
