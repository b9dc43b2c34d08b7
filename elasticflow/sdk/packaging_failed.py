"""The error of code that cannot be sent."""


class PackagingFailed(ValueError):
    """The code cannot be sent; the message says why."""
