"""`python -m elasticflow`: the `eflow` command where it is not on the PATH."""

from elasticflow.cli import main

if __name__ == "__main__":
    main()
