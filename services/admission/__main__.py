"""`python -m elasticflow.services.admission`"""

from elasticflow.shared.library_imports import without_gc

with without_gc():
    from elasticflow.services.admission.service import serve
    from elasticflow.shared.runtime.service.run_service import run_service

if __name__ == "__main__":
    run_service("admission", lambda settings: serve)
