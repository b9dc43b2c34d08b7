"""`python -m services.allocator`"""

from shared.loading import loading

with loading():
    from services.allocator.service import serve
    from shared.runtime.service import run_service

if __name__ == "__main__":
    run_service("allocator", lambda settings: serve)
