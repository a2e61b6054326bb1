// Two kinds of charts, as plain SVG: curves with bands, and dots along a line.

function linearTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) {
    ticks.push(Number(at.toPrecision(12)));
  }
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    ticks.push(...[1, 2, 5].map((factor) => factor * 10 ** power));
  }
  const inside = ticks.filter((tick) => tick >= low && tick <= high);
  return inside.length > 7 ? inside.filter((tick) => /^1(e|0*$)|^0?\.0*1$/.test(String(tick))) : inside;
}

function scale(domain, range, logarithmic = false) {
  const along = logarithmic ? Math.log10 : (value) => value;
  const [low, high] = domain.map(along);
  const size = high - low || 1;
  return (value) => range[0] + ((along(value) - low) / size) * (range[1] - range[0]);
}

const finite = (values) => values.filter((value) => value !== null && Number.isFinite(value));

// series: [{unit, name, n, x, y, low, high, part}]
function curveChart(host, { series, xName, yName, write, logarithmic = false, from = null, dots = false }) {
  const width = host.clientWidth;
  const height = 230;
  const margin = { left: 52, right: 10, top: 10, bottom: 36 };
  const ys = finite(series.flatMap((one) => [...one.y, ...one.low, ...one.high]));
  const positive = ys.filter((y) => y > 0);
  const useLog = logarithmic && positive.length > 0;
  const usable = useLog ? positive : ys;
  if (!usable.length) {
    host.replaceChildren(node('p', { class: 'note' }, 'There are no finite numbers to draw.'));
    return;
  }
  const xs = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
  const yDomain = [from ?? Math.min(...usable), Math.max(...usable) || 1];
  const x = scale([xs[0], xs.at(-1)], [margin.left, width - margin.right]);
  const y = scale(yDomain, [height - margin.bottom, margin.top], useLog);
  const clamp = (value) => y(useLog ? Math.max(value, yDomain[0]) : value);
  const summary = series.map((one) => `${one.name} ends at ${write(one.y.at(-1) ?? NaN)}`).join(', ');
  const svg = shape('svg', {
    class: 'own', viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: 'img',
    'aria-label': `${yName} against ${xName}: ${summary}. Arrow keys read the values.`,
  });
  const yTicks = useLog ? logTicks(...yDomain) : linearTicks(...yDomain, 4);
  for (const tick of yTicks) {
    svg.append(
      shape('line', { class: 'grid', x1: margin.left, x2: width - margin.right, y1: y(tick), y2: y(tick) }),
      shape('text', { x: margin.left - 7, y: y(tick) + 4, 'text-anchor': 'end' }, write(tick, true)),
    );
  }
  for (const tick of xTicks(xs, dots)) {
    svg.append(shape('text', { x: x(tick), y: height - margin.bottom + 16, 'text-anchor': 'middle' }, String(tick)));
  }
  svg.append(
    shape('line', { class: 'axis', x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom }),
    shape('text', { x: (margin.left + width - margin.right) / 2, y: height - 4, 'text-anchor': 'middle' }, xName),
  );
  for (const one of series) svg.append(...curveOf(one, x, clamp, dots));
  const marks = shape('g');
  svg.append(marks);
  host.replaceChildren(svg);
  readValues(svg, { series, xs, x, y: clamp, marks, xName, write, bottom: height - margin.bottom, top: margin.top });
}

const xTicks = (xs, every) =>
  every && xs.length <= 8 ? xs : linearTicks(xs[0], xs.at(-1), 6).filter((tick) => every || Number.isInteger(tick));

function curveOf(one, x, y, dots) {
  const points = one.x.map((at, place) => [x(at), one.y[place]]).filter(([, value]) => value !== null);
  const line = points.map(([at, value]) => `${at.toFixed(1)},${y(value).toFixed(1)}`).join('L');
  const there = one.x.map((_, place) => place).filter((place) => one.low[place] !== null && one.high[place] !== null);
  const edge = (places, ends) => places.map((place) => `${x(one.x[place]).toFixed(1)},${y(ends[place]).toFixed(1)}`);
  const band = [...edge(there, one.high), ...edge([...there].reverse(), one.low)].join('L');
  const unit = unitClass(one.unit);
  return [
    there.length > 1 && !dots ? shape('path', { class: `band ${unit}`, d: `M${band}Z` }) : null,
    ...(dots ? there.map((place) => shape('line', { class: `mean ${unit}`, 'stroke-opacity': 0.35, x1: x(one.x[place]), x2: x(one.x[place]), y1: y(one.low[place]), y2: y(one.high[place]) })) : []),
    shape('path', { class: `line ${unit}${one.name === OURS ? ' ours' : ''}${one.part ? ' part' : ''}`, d: `M${line}` }),
    ...(dots || points.length === 1 ? points.map(([at, value]) => shape('circle', { class: `dot ${unit}`, cx: at, cy: y(value), r: 3 })) : []),
  ].filter(Boolean);
}

// A cursor that goes from value to value, led by pointer or arrow keys.
function readValues(svg, { series, xs, x, y, marks, xName, write, bottom, top }) {
  let place = -1;
  const go = (next) => {
    place = Math.max(0, Math.min(xs.length - 1, next));
    const at = xs[place];
    const here = series
      .map((one) => ({ one, found: one.x.indexOf(at) }))
      .filter(({ one, found }) => found >= 0 && one.y[found] !== null)
      .sort((a, b) => a.one.y[a.found] - b.one.y[b.found]);
    marks.replaceChildren(
      shape('line', { class: 'cursor', x1: x(at), x2: x(at), y1: top, y2: bottom }),
      ...here.map(({ one, found }) => shape('circle', { class: `dot ${unitClass(one.unit)}`, cx: x(at), cy: y(one.y[found]), r: 3.5 })),
    );
    return { at, here };
  };
  const words = ({ one, found }) => [one.name, write(one.y[found]), spread(one, found, write)];
  svg.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect();
    const where = event.clientX - box.left;
    const { at, here } = go(xs.reduce((best, value, index) => (Math.abs(x(value) - where) < Math.abs(x(xs[best]) - where) ? index : best), 0));
    const rows = here.map((one) => {
      const [name, value, range] = words(one);
      const swatch = node('i', { class: `swatch ${unitClass(one.one.unit)}`, style: 'display:inline-block;margin-right:.45em' });
      return node('tr', {}, node('td', {}, swatch, name), node('td', { class: 'number' }, node('b', {}, value)), node('td', {}, range));
    });
    tip.show(event.clientX, event.clientY, node('div', {}, `${xName} ${significant(at)}`), node('table', {}, node('tbody', {}, rows)));
  });
  const leave = () => {
    marks.replaceChildren();
    tip.hide();
    place = -1;
  };
  svg.addEventListener('pointerleave', leave);
  svg.addEventListener('blur', leave);
  svg.addEventListener('keydown', (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -xs.length, End: xs.length }[event.key];
    if (event.key === 'Escape') leave();
    if (step === undefined) return;
    event.preventDefault();
    const { at, here } = go(place < 0 && step < 0 ? xs.length - 1 : place + step);
    speak(`${xName} ${significant(at)}: ${here.map((one) => words(one).slice(0, 2).join(' ')).join(', ')}`);
  });
}

function spread(one, place, write) {
  const n = Array.isArray(one.n) ? one.n[place] : one.n;
  if (one.low[place] === null || one.low[place] === one.high[place]) return `n = ${n}`;
  return `${write(one.low[place])} – ${write(one.high[place])}, n = ${n}`;
}

// groups: [{unit, name, runs: [{id, value}], mean, interval, n, lacking}]
function dotChart(host, { groups, write, onChoose }) {
  const width = host.clientWidth;
  const row = 24;
  const left = Math.min(150, 20 + 7 * Math.max(...groups.map((group) => group.name.length)));
  const height = row * groups.length + 30;
  const values = groups.flatMap((group) => [...group.runs.map((run) => run.value), ...(group.interval ?? [])]);
  if (!values.length) {
    host.replaceChildren(node('p', { class: 'note' }, 'No run has ended here yet.'));
    return;
  }
  const [low, high] = [Math.max(0, Math.min(...values)), Math.max(...values)];
  const room = 0.06 * (high - low || high || 1);
  const domain = [Math.max(0, low - room), high + room];
  const x = scale(domain, [left, width - 12]);
  const svg = shape('svg', { class: 'own', viewBox: `0 0 ${width} ${height}`, height, role: 'group', 'aria-label': 'Test errors by unit' });
  for (const tick of linearTicks(...domain, 5)) {
    svg.append(
      shape('line', { class: 'grid', x1: x(tick), x2: x(tick), y1: 0, y2: height - 24 }),
      shape('text', { x: x(tick), y: height - 8, 'text-anchor': 'middle' }, write(tick, true)),
    );
  }
  groups.forEach((group, place) => {
    const y = row * place + row / 2;
    const unit = unitClass(group.unit);
    const name = group.name.length > 20 ? `${group.name.slice(0, 19)}…` : group.name;
    svg.append(shape('text', { class: 'name', x: left - 10, y: y + 4, 'text-anchor': 'end' }, shape('title', {}, group.name), name));
    if (group.interval) {
      const [from, to] = group.interval.map((end) => x(Math.max(domain[0], Math.min(domain[1], end))));
      svg.append(shape('line', { class: `range ${unit}`, x1: from, x2: to, y1: y, y2: y }));
    }
    if (group.mean !== null) svg.append(shape('line', { class: `mean ${unit}`, x1: x(group.mean), x2: x(group.mean), y1: y - 8, y2: y + 8 }));
    if (group.lacking) svg.append(shape('text', { x: width - 12, y: y + 4, 'text-anchor': 'end' }, group.lacking));
    for (const run of group.runs) svg.append(runDot(run, group, x(run.value), y, unit, write, onChoose));
  });
  host.replaceChildren(svg);
}

function runDot(run, group, x, y, unit, write, onChoose) {
  const words = `${group.name}, seed ${data.runs[run.id].seed}: ${write(run.value)}`;
  const dot = shape('circle', { class: `run-dot ${unit}`, cx: x, cy: y, r: 5, tabindex: 0, role: 'button', 'aria-label': words });
  const mean = group.interval
    ? `mean ${write(group.mean)}, 95 % ${write(group.interval[0])} – ${write(group.interval[1])}, n = ${group.n}`
    : `n = ${group.n}`;
  dot.addEventListener('pointermove', (event) => tip.show(event.clientX, event.clientY, node('b', {}, words), node('div', {}, mean)));
  dot.addEventListener('pointerleave', tip.hide);
  dot.addEventListener('click', () => onChoose(run.id));
  dot.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      onChoose(run.id);
    }
  });
  return dot;
}
