import pytest

from shared.scheduling.quota import WINDOW_S, Quota, TenantUsage, quota_refusal

USED = TenantUsage(admitted_at_s=(0.0, 1000.0, 2000.0), gpu_seconds=(3600.0, 7200.0, 3600.0))
NOW_S = 3000.0


def test_without_bounds_everything_is_allowed() -> None:
    assert quota_refusal(Quota(), USED, 1e12, NOW_S) is None


def test_the_number_of_jobs_is_bounded_over_a_sliding_day() -> None:
    assert quota_refusal(Quota(max_jobs_per_day=4), USED, 1.0, NOW_S) is None
    refusal = quota_refusal(Quota(max_jobs_per_day=3), USED, 1.0, NOW_S)
    assert refusal == "3 of 3 jobs a day are used; retry in 83400 s"
    assert quota_refusal(Quota(max_jobs_per_day=3), USED, 1.0, WINDOW_S) is None
    assert quota_refusal(Quota(max_jobs_per_day=2), USED, 1.0, NOW_S) == (
        "3 of 2 jobs a day are used; retry in 84400 s"
    )
    assert quota_refusal(Quota(max_jobs_per_day=0), TenantUsage(), 1.0, NOW_S) == (
        "0 of 0 jobs a day are used; no job is allowed"
    )


def test_gpu_hours_are_bounded_with_the_new_job_counted() -> None:
    quota = Quota(max_gpu_hours_per_day=5.0)
    assert quota_refusal(quota, USED, 3600.0, NOW_S) is None
    assert quota_refusal(quota, USED, 7200.0, NOW_S) == (
        "4.00 of 5.00 GPU-hours a day are used and the job needs 2.00; retry in 83400 s"
    )
    assert quota_refusal(quota, USED, 7200.0, WINDOW_S) is None
    assert quota_refusal(quota, USED, 3 * 7200.0, NOW_S) == (
        "4.00 of 5.00 GPU-hours a day are used and the job needs 6.00; it never fits"
    )


def test_usage_names_the_gpu_seconds_of_each_job() -> None:
    with pytest.raises(ValueError, match="GPU-seconds"):
        TenantUsage(admitted_at_s=(1.0,))
