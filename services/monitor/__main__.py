"""`python -m elasticflow.services.monitor`"""

from elasticflow.shared.import_without_gc import without_gc

with without_gc():
    from elasticflow.services.monitor.service import serve
    from elasticflow.shared.runtime.service.run_service import run_service

if __name__ == "__main__":
    run_service("monitor", lambda settings: serve)
