"""`python -m benchmarks.papers`: every figure, table and headline claim of four papers against this project."""

from elasticflow.shared.library_imports import ending_at_interrupt

with ending_at_interrupt():
    import typer

    from benchmarks.papers.command import main

if __name__ == "__main__":
    typer.run(main)
