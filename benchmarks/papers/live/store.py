"""The numbers of each part of an analogue, a file each, written as soon as it ends."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.analogues import Analogue
from benchmarks.papers.execution import code_digest
from benchmarks.papers.store import write_json


class LiveStore:
    """folder: of the report. Parts that were measured with another setup or code do not count."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "live"
        self._folder.mkdir(parents=True, exist_ok=True)

    def forget(self, analogues: Sequence[Analogue]) -> None:
        """Delete what is stored of these."""
        for analogue in analogues:
            for part in range(len(analogue.parts)):
                self._file(analogue, part).unlink(missing_ok=True)

    def keep(self, analogue: Analogue, part: int, result: Mapping[str, Any]) -> None:
        """Write at once: an interruption loses only the part in progress."""
        write_json(self._file(analogue, part), {**result, "code": code_digest()})

    def result(self, analogue: Analogue, part: int) -> Mapping[str, Any] | None:
        """The result of a part; None if it was not measured yet."""
        file = self._file(analogue, part)
        if not file.exists():
            return None
        result = json.loads(file.read_text(encoding="utf-8"))
        is_same = (result["setup"], result.get("code")) == (analogue.settings(part), code_digest())
        return result if is_same else None

    def to_do(self, analogues: Sequence[Analogue]) -> list[tuple[Analogue, int]]:
        """Analogues and parts without a result."""
        parts = [(analogue, part) for analogue in analogues for part in range(len(analogue.parts))]
        return [(analogue, part) for analogue, part in parts if self.result(analogue, part) is None]

    def _file(self, analogue: Analogue, part: int) -> Path:
        return self._folder / f"{analogue.run_id(part)}.json"
