"""Pictures as inline SVG, the same bytes for the same numbers."""

import io
from collections.abc import Callable

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas


def svg(name: str, width: float, height: float, draw: Callable[[Canvas], None]) -> str:
    """What `draw` draws. name: of the picture; sizes in inches."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        canvas = Canvas(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(canvas)
        draw(canvas)
        written = io.StringIO()
        canvas.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]
