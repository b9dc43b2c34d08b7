"""`python -m services.placement`"""

from shared.loading import loading

with loading():
    from services.placement.service import serve
    from shared.runtime.service import run_service

if __name__ == "__main__":
    run_service("placement", lambda settings: serve)
