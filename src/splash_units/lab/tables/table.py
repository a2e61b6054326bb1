"""A table as data: what is said, in which cell, from which runs. How it looks is another matter."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One cell: its text, the number behind it if it has one, and the runs that number is from.

    `best` is set where a test says so, `missing` where runs that belong here are not there.
    """

    text: str
    value: float | None = None
    best: bool = False
    missing: bool = False
    runs: tuple[str, ...] = ()


Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Columns, rows of as many cells, and what a reader must know beside them.

    `scale` is that of the runs, None if there are none in it. `groups` are the numbers of the rows
    before which a new group begins.
    """

    name: str
    title: str
    scale: str | None
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.name}: a row of {len(row)} cells, {len(self.columns)} columns"
                )


def words(text: str) -> Cell:
    """A cell that only says something."""
    return Cell(text)


EMPTY = Cell("")
