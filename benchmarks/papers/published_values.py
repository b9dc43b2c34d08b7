"""Values of claims, for benchmarks that print them beside their own numbers or follow a published setup."""

from collections.abc import Mapping
from functools import cache

from benchmarks.papers.claims_file import read_claims


def published_value(claim_id: str) -> float:
    """claim_id: as "VF-F14/error". KeyError if there is no claim of that id with a value."""
    return _values()[claim_id]


@cache
def _values() -> Mapping[str, float]:
    claims = (claim for figure in read_claims().figures for claim in figure.claims)
    return {claim.claim_id: claim.value for claim in claims if claim.value is not None}
