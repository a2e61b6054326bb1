// The learned shapes, played through training: one small graph a layer.

const REACH = 4; // of x, as the histograms' edges
const player = { entry: null, timer: null };

function offerRuns() {
  const select = $('player-run');
  if (!select) return;
  const before = select.value;
  const offered = data.shapes
    .filter(({ run }) => shownRun(run))
    .sort((a, b) => data.runs[a.run].unit - data.runs[b.run].unit);
  select.replaceChildren(...offered.map(({ run }) => {
    const { unit, setting, seed } = data.runs[run];
    const { title, subtitle } = data.settings[setting];
    return node('option', { value: run }, `${data.units[unit]} · ${title} · seed ${seed} · ${subtitle}`);
  }));
  if (offered.some(({ run }) => run === before)) select.value = before;
  select.disabled = !offered.length;
  chooseRun();
}

function chooseRun() {
  pause();
  const entry = data.shapes.find(({ run }) => run === $('player-run').value);
  if (entry && entry === player.entry) return;
  player.entry = entry ?? null;
  const slider = $('player-time');
  slider.disabled = !entry;
  if (!entry) {
    $('player-layers').replaceChildren(node('p', { class: 'note' }, 'No run with these filters has shapes.'));
    $('player-epoch').textContent = '';
    return;
  }
  slider.max = entry.times.length - 1;
  slider.value = entry.times.length - 1;
  prepareLayers(entry);
  showMoment();
}

// h(x) = Σ right·max(0, x − b) + Σ left·max(0, −x − b): straight between hinges, so they suffice.
function pointsAt(entry, layer, moment) {
  if (layer.curves) return entry.grid.map((x, place) => [x, layer.curves[moment][place]]);
  const inner = layer.hinges.filter((b) => b < REACH);
  const xs = [-REACH, ...inner.map((b) => -b).reverse(), ...inner, REACH];
  return xs.map((x) => [x, layer.hinges.reduce(
    (sum, b, place) => sum + layer.right[moment][place] * Math.max(0, x - b) + layer.left[moment][place] * Math.max(0, -x - b), 0)]);
}

function prepareLayers(entry) {
  const moments = entry.times.map((_, moment) => moment);
  const ys = finite(entry.layers.flatMap((layer) => moments.flatMap((moment) => pointsAt(entry, layer, moment).map(([, y]) => y))));
  const domain = [Math.min(...ys, 0), Math.max(...ys, 0)];
  const size = { width: 160, height: 120 };
  const x = scale([-REACH, REACH], [0, size.width]);
  const y = scale(domain, [size.height - 2, 2]);
  const unit = unitClass(data.runs[entry.run].unit);
  const path = (points) => `M${points.filter(([, value]) => value !== null).map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join('L')}`;
  entry.layers.forEach((layer) => { layer.path = path; });
  $('player-layers').replaceChildren(...entry.layers.map((layer) => {
    const curve = shape('path', { class: `shape ${unit}` });
    layer.curve = curve;
    const svg = shape(
      'svg', { viewBox: `0 0 ${size.width} ${size.height}`, role: 'img', 'aria-label': `Shape of ${layer.name}` },
      layer.inputs ? shape('path', { class: 'inputs', d: histogram(layer.inputs, size) }) : null,
      shape('line', { class: 'grid', x1: 0, x2: size.width, y1: y(0), y2: y(0) }),
      shape('line', { class: 'grid', x1: x(0), x2: x(0), y1: 0, y2: size.height }),
      shape('path', { class: 'start', d: path(pointsAt(entry, layer, 0)) }),
      curve,
    );
    svg.addEventListener('pointermove', (event) => readShape(event, entry, layer, svg));
    svg.addEventListener('pointerleave', tip.hide);
    return node('figure', {}, svg, node('figcaption', {}, layer.name));
  }));
}

function histogram(heights, { width, height }) {
  const step = width / heights.length;
  const tops = heights.map((part, place) => `L${(place * step).toFixed(1)},${(height - part * height * 0.6).toFixed(1)}h${step.toFixed(2)}`);
  return `M0,${height}${tops.join('')}L${width},${height}Z`;
}

function readShape(event, entry, layer, svg) {
  const box = svg.getBoundingClientRect();
  const at = -REACH + (2 * REACH * (event.clientX - box.left)) / box.width;
  const points = pointsAt(entry, layer, Number($('player-time').value));
  const place = Math.max(1, points.findIndex(([x]) => x >= at));
  const [[x0, y0], [x1, y1]] = [points[place - 1], points[place]];
  const value = y0 + ((y1 - y0) * (at - x0)) / (x1 - x0);
  const slope = (y1 - y0) / (x1 - x0);
  tip.show(event.clientX, event.clientY, node('b', {}, `h(${at.toFixed(2)}) = ${value.toFixed(3)}`), node('div', {}, `${layer.name}, slope ${slope.toFixed(3)}`));
}

function showMoment() {
  const { entry } = player;
  const moment = Number($('player-time').value);
  for (const layer of entry.layers) layer.curve.setAttribute('d', layer.path(pointsAt(entry, layer, moment)));
  const words = `epoch ${significant(entry.times[moment], 3)} of ${significant(entry.times.at(-1), 3)}`;
  $('player-epoch').textContent = words;
  $('player-time').setAttribute('aria-valuetext', words);
}

function play() {
  const slider = $('player-time');
  if (!player.entry) return;
  if (Number(slider.value) >= Number(slider.max)) slider.value = 0;
  showMoment();
  $('player-play').textContent = '❚❚ pause';
  $('player-play').setAttribute('aria-pressed', 'true');
  player.timer = setInterval(() => {
    if (Number(slider.value) >= Number(slider.max)) {
      pause();
      return;
    }
    slider.value = Number(slider.value) + 1;
    showMoment();
  }, Math.max(60, 5000 / player.entry.times.length));
}

function pause() {
  clearInterval(player.timer);
  player.timer = null;
  $('player-play').textContent = '▶ play';
  $('player-play').setAttribute('aria-pressed', 'false');
}

function startPlayer() {
  if (!$('player-run')) return;
  $('player-run').addEventListener('change', chooseRun);
  $('player-time').addEventListener('input', () => {
    pause();
    showMoment();
  });
  $('player-play').addEventListener('click', () => (player.timer ? pause() : play()));
}
