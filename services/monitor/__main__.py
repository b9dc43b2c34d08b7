"""`python -m services.monitor`"""

from shared.loading import loading

with loading():
    from services.monitor.service import serve
    from shared.runtime.service import run_service

if __name__ == "__main__":
    run_service("monitor", lambda settings: serve)
