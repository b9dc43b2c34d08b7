from elasticflow.services.admission.quota_rules import quota_rejection
from elasticflow.shared.messages.pool_config import DAY_S, GpuHourBudget, TenantQuota
from elasticflow.shared.state.pool import Usage

USED = (
    Usage(at_s=0.0, gpu_seconds=3600.0),
    Usage(at_s=1000.0, gpu_seconds=7200.0),
    Usage(at_s=2000.0, gpu_seconds=3600.0),
)
NOW_S = 3000.0


def test_without_bounds_everything_is_allowed() -> None:
    assert quota_rejection(TenantQuota(), USED, 1e12, NOW_S) is None


def test_the_number_of_jobs_is_bounded_over_a_sliding_day() -> None:
    assert quota_rejection(TenantQuota(max_jobs_per_day=4), USED, 1.0, NOW_S) is None
    refusal = quota_rejection(TenantQuota(max_jobs_per_day=3), USED, 1.0, NOW_S)
    assert refusal == "3 of 3 jobs a day are used; retry in 83400 s"
    assert quota_rejection(TenantQuota(max_jobs_per_day=3), USED, 1.0, DAY_S) is None
    assert quota_rejection(TenantQuota(max_jobs_per_day=2), USED, 1.0, NOW_S) == (
        "3 of 2 jobs a day are used; retry in 84400 s"
    )
    assert quota_rejection(TenantQuota(max_jobs_per_day=0), (), 1.0, NOW_S) == (
        "0 of 0 jobs a day are used; no job is allowed"
    )


def test_gpu_hours_are_bounded_with_the_new_job_counted() -> None:
    quota = TenantQuota(max_gpu_hours_per_day=5.0)
    assert quota_rejection(quota, USED, 3600.0, NOW_S) is None
    assert quota_rejection(quota, USED, 7200.0, NOW_S) == (
        "4.00 of 5.00 GPU-hours a day are used and the job needs 2.00; retry in 83400 s"
    )
    assert quota_rejection(quota, USED, 7200.0, DAY_S) is None
    assert quota_rejection(quota, USED, 3 * 7200.0, NOW_S) == (
        "4.00 of 5.00 GPU-hours a day are used and the job needs 6.00; it never fits"
    )


def test_a_minute_of_promises_counts_as_of_its_last_one() -> None:
    burst = (Usage(at_s=50.0, gpu_seconds=3600.0, num_jobs=10), Usage(at_s=70.0, gpu_seconds=360.0))
    assert quota_rejection(TenantQuota(max_jobs_per_day=12), burst, 1.0, NOW_S) is None
    assert quota_rejection(TenantQuota(max_jobs_per_day=11), burst, 1.0, NOW_S) == (
        "11 of 11 jobs a day are used; retry in 83450 s"
    )
    assert quota_rejection(TenantQuota(max_jobs_per_day=2), burst, 1.0, DAY_S + 49.0) is not None
    assert quota_rejection(TenantQuota(max_jobs_per_day=2), burst, 1.0, DAY_S + 50.0) is None


def test_each_budget_counts_its_own_window() -> None:
    hourly = GpuHourBudget(max_gpu_hours=2.0, window_s=1500.0)
    weekly = GpuHourBudget(max_gpu_hours=4.5, window_s=7 * DAY_S)
    assert quota_rejection(TenantQuota(budgets=(hourly,)), USED, 3600.0, NOW_S) is None
    both = TenantQuota(budgets=(hourly, weekly))
    assert both.longest_window_s == 7 * DAY_S
    assert quota_rejection(both, USED, 3600.0, NOW_S) == (
        "4.00 of 4.50 GPU-hours in 168 h are used and the job needs 1.00; retry in 601800 s"
    )
    assert quota_rejection(both, USED, 3600.0, 7 * DAY_S) is None


def test_a_pool_of_several_types_counts_all_of_them_and_names_the_hours_of_each() -> None:
    usage = (Usage.on("", 3600.0, 0.0), Usage.on("P100", 5400.0, 1000.0))
    quota = TenantQuota(max_gpu_hours_per_day=3.0)
    assert quota_rejection(quota, usage, 3600.0, NOW_S, first_type="V100") == (
        "2.50 of 3.00 GPU-hours a day are used (1.00 on V100, 1.50 on P100) and the job needs 1.00; retry in 83400 s"
    )
    assert quota_rejection(quota, usage, 1800.0, NOW_S, first_type="V100") is None
    unused = quota_rejection(quota, (), 36000.0, NOW_S, first_type="V100")
    assert unused == "0.00 of 3.00 GPU-hours a day are used and the job needs 10.00; it never fits"
