// Small multiples: a panel for each setting, or for each attack in a setting.

const errorWords = (value, short) => (short ? `${significant(100 * value, 3)} %` : percent(value));

function panel(title, sub, key = null) {
  const host = node('div', { class: 'drawing' });
  return { host, element: node('div', { class: 'panel' }, node('h3', {}, title), node('p', { class: 'sub' }, sub), host, key) };
}

function legend(series) {
  return node('ul', { class: 'key' }, series.map((one) => node('li', { class: unitClass(one.unit) }, node('i', { 'aria-hidden': 'true' }), one.name)));
}

function replacePanels(container, panels) {
  container.querySelectorAll('.drawing').forEach(forget);
  container.replaceChildren(...panels.map(({ element }) => element));
  panels.forEach(({ host, paint }) => drawLater(host, paint));
}

function drawErrors() {
  const panels = visibleSettings().map((place) => {
    const groups = data.groups.filter((group) => group.setting === place && shownUnit(group.unit)).map(errorGroup);
    if (!groups.length) return null;
    const setting = data.settings[place];
    const made = panel(setting.title, setting.subtitle);
    return { ...made, paint: (host) => dotChart(host, { groups, write: errorWords, onChoose: (id) => openRuns([id]) }) };
  });
  replacePanels($('error-panels'), panels.filter(Boolean));
}

function errorGroup(group) {
  const runs = group.runs.map((id) => ({ id, state: data.runs[id].state, value: data.runs[id].test_error }));
  const done = runs.filter((run) => run.state === 'done' && Number.isFinite(run.value));
  const others = {};
  for (const { state } of runs) if (state !== 'done') others[state] = (others[state] ?? 0) + 1;
  const lacking = Object.entries(others).map(([state, count]) => `${count} ${state}`).join(', ');
  return { ...group, name: data.units[group.unit], runs: done, lacking };
}

// With a few settings both measures fit beside each other; with many, one is chosen.
function drawCurves() {
  const both = visibleSettings().length <= 2;
  document.querySelector('.switch').hidden = both;
  const measures = both ? ['train_loss', 'test_error'] : [document.querySelector('input[name="curve"]:checked').value];
  const panels = visibleSettings().flatMap((place) => measures.map((measure) => curvePanel(place, measure)));
  replacePanels($('curve-panels'), panels.filter(Boolean));
}

function curvePanel(place, measure) {
  const isError = measure === 'test_error';
  const series = data.curves
    .filter((curve) => curve.setting === place && shownUnit(curve.unit))
    .map((curve) => ({
      unit: curve.unit, name: data.units[curve.unit], n: curve.n, part: !curve.whole,
      x: curve.epoch, y: curve[measure][0], low: curve[measure][1], high: curve[measure][2],
    }))
    .reverse(); // SPLASH, the first, is drawn last and so on top
  if (!series.length) return null;
  const { title, subtitle } = data.settings[place];
  const name = isError ? 'test error' : 'training loss';
  const write = isError ? errorWords : (value, short) => significant(value, short ? 2 : 4);
  return {
    ...panel(title, `${name}, ${subtitle}`, legend([...series].reverse())),
    paint: (host) => curveChart(host, { series, xName: 'epoch', yName: name, write, logarithmic: true }),
  };
}

function drawAttacks() {
  if (!$('attack-panels')) return;
  const groups = new Map();
  for (const one of data.attacks) {
    if (!visibleSettings().includes(one.setting) || !shownUnit(one.unit)) continue;
    const key = JSON.stringify([one.setting, one.attack, one.options, one.budget]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push({ ...one, name: data.units[one.unit] });
  }
  const panels = [...groups.values()].map((series) => {
    series.sort((a, b) => b.unit - a.unit);
    const { setting, attack, options, budget } = series[0];
    const made = panel(`${attack} · ${data.settings[setting].title}`, `${options}; ${data.settings[setting].subtitle}`, legend([...series].reverse()));
    return { ...made, paint: (host) => curveChart(host, { series, xName: budget, yName: 'Part of images fooled', write: (value, short) => percent(value, short ? 0 : 1), from: 0, dots: true }) };
  });
  replacePanels($('attack-panels'), panels);
}
