"""Makes the joblib backend known. Imports joblib only when it is called."""

from importlib.util import find_spec

from elasticflow.errors import MissingExtra


def register_joblib() -> None:
    """Register the backend "elasticflow" with joblib: `joblib.parallel_config(backend="elasticflow")` selects it.

    Further arguments of `parallel_config` are options of `PaddingExecutor`. Raises MissingExtra without joblib.
    """
    if find_spec("joblib") is None:
        raise MissingExtra("elasticflow.register_joblib", "joblib", "joblib")
    import joblib.parallel  # pyright: ignore[reportMissingTypeStubs]

    from elasticflow.sdk.joblib_backend import ElasticFlowBackend

    joblib.parallel.register_parallel_backend("elasticflow", ElasticFlowBackend)  # pyright: ignore[reportUnknownMemberType]
