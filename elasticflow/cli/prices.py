"""Prices of GPU-hours: the option, and what it says."""

import re
from typing import Annotated

import typer

_PRICE = re.compile(r"(?:([^=,]+)=)?(\d+(?:\.\d+)?)")

Price = Annotated[
    str,
    typer.Option(
        "--price",
        metavar="TYPE=DOLLARS,...",
        help="Of a GPU-hour, by type: V100=2.48,P100=1.46; a number alone is for any other type.",
    ),
]


def prices_of(text: str) -> dict[str, float]:
    """Dollars a GPU-hour by type, of "V100=2.48,P100=1.46"; a number alone is the price of any other type, ""."""
    prices: dict[str, float] = {}
    for part in text.split(","):
        found = _PRICE.fullmatch(part.strip())
        if found is None or (found[1] or "") in prices:
            raise typer.BadParameter(f"{part.strip()!r} is not TYPE=DOLLARS, each type once", param_hint="--price")
        prices[found[1] or ""] = float(found[2])
    return prices
