"""`python -m services.admission`"""

from services.admission.service import serve
from shared.runtime.service import run_service

if __name__ == "__main__":
    run_service("admission", lambda settings: serve)
