"""A table as text, markdown, LaTeX or CSV. Each format's own characters are escaped."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence

from splash_units.lab.spec import unknown
from splash_units.lab.tables.table import Cell, Table

BEST = "best in bold where a test says so (Welch, Holm over the table, p < 0.05)"


def render(table: Table, format: str = "text") -> str:
    """The table in one of FORMATS, ending with a line break."""
    if format not in _RENDERERS:
        raise ValueError(unknown("format", format, _RENDERERS))
    return _RENDERERS[format](table)


def _text(table: Table) -> str:
    """Aligned columns; the best is marked by a star, for want of bold."""
    texts = [[f"{cell.text}*" if cell.best else cell.text for cell in row] for row in table.rows]
    widths = [
        max(len(text) for text in column) for column in zip(table.columns, *texts, strict=True)
    ]
    lines = [
        _heading(table),
        "",
        _aligned(table.columns, widths),
        "  ".join("-" * w for w in widths),
    ]
    for number, row in enumerate(texts):
        if number in table.groups and number:
            lines.append("")
        lines.append(_aligned(row, widths))
    notes = [*table.notes, *(["* " + BEST.replace(" in bold", "")] if _has_best(table) else [])]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def _aligned(texts: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()


def _markdown(table: Table) -> str:
    def line(texts: Sequence[str]) -> str:
        return f"| {' | '.join(texts)} |"

    def shown(cell: Cell) -> str:
        text = _escaped_markdown(cell.text)
        return f"**{text}**" if cell.best else text

    notes = [*table.notes, *([BEST] if _has_best(table) else [])]
    return "\n".join(
        [
            f"**{_escaped_markdown(_heading(table))}**",
            "",
            line([_escaped_markdown(column) for column in table.columns]),
            "|" + "---|" * len(table.columns),
            *(line([shown(cell) for cell in row]) for row in table.rows),
            *(["", *(f"- {_escaped_markdown(note)}" for note in notes)] if notes else []),
            "",
        ]
    )


def _escaped_markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~$])", r"\\\1", text).replace("\n", " ")


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "–": "--", "−": "$-$", "≤": r"$\le$", "<": "$<$", ">": "$>$", "|": "$|$",
    "×": r"$\times$", "\n": " ", "ε": r"$\varepsilon$", "\"": "''",
}  # fmt: skip


def _latex(table: Table) -> str:
    def line(texts: Sequence[str]) -> str:
        return f"{' & '.join(texts)} \\\\"

    def shown(cell: Cell) -> str:
        text = _escaped_latex(cell.text)
        return rf"\textbf{{{text}}}" if cell.best else text

    rows = []
    for number, row in enumerate(table.rows):
        if number in table.groups and number:
            rows.append(r"\midrule")
        rows.append(line([shown(cell) for cell in row]))
    notes = [*table.notes, *([BEST] if _has_best(table) else [])]
    caption = ". ".join(note.rstrip(".") for note in [_heading(table), *notes]) + "."
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped_latex(caption)}}}",
            rf"\label{{tab:{re.sub(r'[^a-z0-9]+', '-', table.name)}}}",
            rf"\begin{{tabular}}{{{'l' * len(table.columns)}}}",
            r"\toprule",
            line([_escaped_latex(column) for column in table.columns]),
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _escaped_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _csv(table: Table) -> str:
    """One line a row, each with the table and its scale; numbers are in the text they have."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["table", "scale", *table.columns])
    for row in table.rows:
        writer.writerow([table.name, table.scale or "", *(cell.text for cell in row)])
    return lines.getvalue()


def _heading(table: Table) -> str:
    return table.title if table.scale is None else f"{table.title} (scale {table.scale})"


def _has_best(table: Table) -> bool:
    return any(cell.best for row in table.rows for cell in row)


_RENDERERS: Mapping[str, Callable[[Table], str]] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
}
FORMATS = tuple(_RENDERERS)
