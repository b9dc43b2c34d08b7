"""Whether a library found no credentials for a storage, and which variables it reads. Pure."""

_NAMES = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")  # botocore, google.auth
_TEXT = "Unable to locate credentials"
_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}


def lacks_credentials(error: BaseException | None) -> bool:
    """Whether the error, or one that caused it, says that there are none."""
    while error is not None:
        if type(error).__name__ in _NAMES or _TEXT in str(error):
            return True
        error = error.__cause__
    return False


def credential_variables(uri: str) -> str:
    """What the library for its protocol reads, as words; without a name if that is not known."""
    protocol = uri.partition("://")[0]
    return _VARIABLES.get(_ALIASES.get(protocol, protocol), "the variables that the library of its protocol reads")
