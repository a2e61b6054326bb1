// Tables: sorted by a click on a head, and filtered with everything else.

function cellValue(row, column) {
  const cell = row.cells[column];
  if (!cell || cell.classList.contains('absent')) return null;
  return cell.dataset.value !== undefined ? Number(cell.dataset.value) : cell.textContent.trim();
}

function compareCells(a, b) {
  if (typeof a === 'number' && typeof b === 'number') return a - b;
  return String(a).localeCompare(String(b), 'en', { numeric: true });
}

function sortTable(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, value: cellValue(row, column) }));
  // What is missing stays at the end whichever way one sorts.
  rows.sort((a, b) => {
    if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
    return direction * compareCells(a.value, b.value);
  });
  body.append(...rows.map(({ row }) => row));
  [...table.tHead.rows[0].cells].forEach((cell, place) => {
    if (place === column) cell.setAttribute('aria-sort', direction > 0 ? 'ascending' : 'descending');
    else cell.removeAttribute('aria-sort');
  });
}

function startTables() {
  for (const button of document.querySelectorAll('.sort')) {
    button.addEventListener('click', () => {
      const cell = button.closest('th');
      const direction = cell.getAttribute('aria-sort') === 'ascending' ? -1 : 1;
      sortTable(button.closest('table'), cell.cellIndex, direction);
      speak(`Sorted by ${button.textContent}, ${direction > 0 ? 'ascending' : 'descending'}`);
    });
  }
}

// A row is about the runs its numbers come from; one that names none is never hidden.
function runsOf(row) {
  if (row.dataset.run) return [row.dataset.run];
  const named = [...row.querySelectorAll('[data-runs]')].flatMap((cell) => cell.dataset.runs.split(' '));
  return named.flatMap((id) => data.findings[id]?.runs ?? [id]);
}

function filterTables() {
  for (const row of document.querySelectorAll('.sortable tbody tr')) {
    const runs = runsOf(row).filter((id) => data.runs[id]);
    row.hidden = runs.length > 0 && !runs.some(shownRun);
  }
  for (const picture of document.querySelectorAll('.picture')) picture.hidden = !shownRun(picture.dataset.runs);
}
