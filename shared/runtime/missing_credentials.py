"""Whether a library found no credentials for a storage, and which variables it reads. Pure."""

_NAMES = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")  # botocore, google.auth
_TEXTS = (
    "Unable to locate credentials",
    "Anonymous caller does not have",
)  # botocore; Google, which gcsfs asks even so
_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_SECRETS = {  # of a job, which runs on another machine: they name no file
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": 'FSSPEC_GS (a JSON object: its "token" is the key of a service account)',
}
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}


def lacks_credentials(error: BaseException | None) -> bool:
    """Whether the error, or one that caused it, says that there are none."""
    while error is not None:
        if type(error).__name__ in _NAMES or any(text in str(error) for text in _TEXTS):
            return True
        error = error.__cause__
    return False


def credential_variables(uri: str) -> str:
    """What the library for its protocol reads, as words; without a name if that is not known."""
    return _VARIABLES.get(_storage(uri), "the variables that the library of its protocol reads")


def credential_secrets(uri: str) -> str:
    """What a job passes with `--secret`, as words."""
    return _SECRETS.get(_storage(uri), credential_variables(uri))


def _storage(uri: str) -> str:
    protocol = uri.partition("://")[0]
    return _ALIASES.get(protocol, protocol)
