"""Which errors of libraries say that there are no credentials, and which variables they name."""

import pytest

from elasticflow.shared.runtime.remote_folder import credential_secrets, credential_variables, lacks_credentials


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (PermissionError("Unable to locate credentials"), True),
        (RuntimeError("Anonymous caller does not have storage.objects.get access to the object., 401"), True),
        (OSError("Forbidden: https://storage.googleapis.com/b/pool"), False),
        (None, False),
    ],
    ids=["s3", "gs", "forbidden", "none"],
)
def test_an_error_that_says_so(error: Exception | None, lacks: bool) -> None:
    assert lacks_credentials(error) is lacks


def test_an_error_whose_cause_says_so() -> None:
    error = OSError("input/output error")
    error.__cause__ = PermissionError("Unable to locate credentials")
    assert lacks_credentials(error)


def test_a_job_is_given_values_and_no_paths_of_its_users_machine() -> None:
    assert credential_variables("gcs://pool/models") == "GOOGLE_APPLICATION_CREDENTIALS"
    assert (
        credential_secrets("gcs://pool/set") == 'FSSPEC_GS (a JSON object: its "token" is the key of a service account)'
    )
    assert credential_secrets("abfs://pool/set") == "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
    assert credential_secrets("oci://pool/set") == "the variables that the library of its protocol reads"
