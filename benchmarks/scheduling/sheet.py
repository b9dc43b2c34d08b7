"""One table, on a terminal and in Markdown."""

from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table. rows: cells in the order of the columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def rich(self) -> Table:
        """The table for a terminal."""
        table = Table(title=self.title)
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", _line(self.columns), _line(("---",) * len(self.columns))]
        return "\n".join([*lines, *map(_line, self.rows), ""])


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
