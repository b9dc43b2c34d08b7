"""`python -m services.admission`"""

from shared.loading import loading

with loading():
    from services.admission.service import serve
    from shared.runtime.service import run_service

if __name__ == "__main__":
    run_service("admission", lambda settings: serve)
