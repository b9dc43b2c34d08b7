"""`python -m elasticflow.services.allocator`"""

from elasticflow.shared.library_imports import without_gc

with without_gc():
    from elasticflow.services.allocator.service import serve
    from elasticflow.shared.runtime.service.run_service import run_service

if __name__ == "__main__":
    run_service("allocator", lambda settings: serve)
