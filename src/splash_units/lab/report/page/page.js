// Puts the page together: filters, theme, printing, and news of a store that grows.

const filters = $('filters');

const NAMES = ['model', 'data', 'scale', 'unit'];

// What the filters let through; nothing chosen of a kind means all of it.
const selection = { settings: new Set(), units: new Set() };

function select() {
  const chosen = Object.fromEntries(NAMES.map((name) => [name, new Set(
    [...filters.querySelectorAll(`input[name="${name}"]:checked`)].map((box) => box.value))]));
  const allows = (name, value) => !chosen[name].size || chosen[name].has(value);
  const places = (list, test) => new Set(list.map((_, place) => place).filter((place) => test(list[place])));
  selection.settings = places(data.settings, (setting) => ['model', 'data', 'scale'].every((name) => allows(name, setting[name])));
  selection.units = places(data.units, (unit) => allows('unit', unit));
}

const visibleSettings = () => [...selection.settings];
const shownUnit = (unit) => selection.units.has(unit);

function shownRun(id) {
  const run = data.runs[id];
  return Boolean(run) && selection.units.has(run.unit) && selection.settings.has(run.setting);
}

function applyFilters() {
  select();
  drawErrors();
  drawCurves();
  drawAttacks();
  offerRuns();
  filterTables();
  const ids = Object.keys(data.runs);
  const count = ids.filter(shownRun).length;
  filters.classList.toggle('active', count < ids.length);
  $('filter-count').textContent = count < ids.length ? `${count} of ${ids.length} runs` : '';
}

function keepFilters() {
  const boxes = [...filters.querySelectorAll('input:checked')];
  memory.keep('session', 'splash-filters', JSON.stringify(boxes.map((box) => [box.name, box.value])));
}

function recallFilters() {
  const entries = JSON.parse(memory.recall('session', 'splash-filters') ?? '[]');
  for (const box of filters.querySelectorAll('input')) {
    box.checked = entries.some(([name, value]) => name === box.name && value === box.value);
  }
}

function startFilters() {
  if (!filters) return;
  filters.hidden = false;
  recallFilters();
  filters.addEventListener('change', () => {
    keepFilters();
    applyFilters();
  });
  filters.addEventListener('reset', () => setTimeout(() => {
    filters.querySelectorAll('input').forEach((box) => { box.checked = false; });
    keepFilters();
    applyFilters();
  }));
  filters.addEventListener('submit', (event) => event.preventDefault());
  document.querySelectorAll('input[name="curve"]').forEach((box) => box.addEventListener('change', drawCurves));
  applyFilters();
}

function startTheme() {
  const kept = memory.recall('local', 'splash-theme');
  if (kept) document.documentElement.dataset.theme = kept;
  $('theme').addEventListener('click', () => {
    const next = isDark() ? 'light' : 'dark';
    document.documentElement.dataset.theme = next;
    memory.keep('local', 'splash-theme', next);
    drawFigures();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawFigures);
}

// A served page asks whether its store has changed, and loads itself anew when it has.
function watchStore() {
  const { live } = document.body.dataset;
  if (!live) return;
  setInterval(async () => {
    try {
      const answer = await fetch('/version', { cache: 'no-store' });
      if (answer.ok && (await answer.text()) !== live && !$('details').open) location.reload();
    } catch {
      // The server has gone; the page stays as it is.
    }
  }, 2000);
}

startTheme();
startTables();
startPlayer();
startFilters();
startDialogs();
drawFigures();
watchStore();
addEventListener('beforeprint', drawAll);
document.documentElement.dataset.ready = 'yes';
