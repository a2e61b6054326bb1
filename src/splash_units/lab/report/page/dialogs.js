// Where a number comes from: spec and command of the runs behind it; and images at full size.

function openDialog(title, ...content) {
  const dialog = $('details');
  $('details-title').textContent = title;
  $('details-body').replaceChildren(...content);
  $('details-body').querySelectorAll('code.command').forEach(makeCopyable);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

function openRuns(ids) {
  const known = ids.filter((id) => data.runs[id] || data.findings[id]);
  if (!known.length) return;
  if (known.length === 1) {
    openDialog(titleOf(known[0]), detailsOf(known[0]));
    return;
  }
  openDialog(`${known.length} results behind this number`, ...known.map((id) =>
    node('details', { class: 'several' }, node('summary', {}, titleOf(id)), detailsOf(id))));
}

const titleOf = (id) => (data.runs[id] ? `${runTitle(id)}: ${outcomeOf(data.runs[id])}` : data.findings[id].title);
const detailsOf = (id) => (data.runs[id] ? runDetails(id) : findingDetails(id));

function findingDetails(id) {
  const { runs, spec, result, command } = data.findings[id];
  const facts = Object.entries(result).flatMap(([name, value]) =>
    [node('dt', {}, name.replaceAll('_', ' ')), node('dd', {}, String(value))]);
  return node('div', {},
    node('dl', {}, facts),
    command ? node('p', {}, 'Again: ', node('code', { class: 'command' }, `${command}${data.store}`)) : null,
    node('p', { class: 'note' }, 'Its spec, without what is left at the defaults:'),
    node('pre', { tabindex: 0 }, JSON.stringify(spec, null, 2)),
    ...runs.filter((run) => data.runs[run]).map((run) => node('details', { class: 'several' }, node('summary', {}, `network: ${titleOf(run)}`), runDetails(run))));
}

function runTitle(id) {
  const run = data.runs[id];
  return `${data.units[run.unit]} · ${data.settings[run.setting].title} · seed ${run.seed}`;
}

function outcomeOf(run) {
  if (Number.isFinite(run.test_error)) return percent(run.test_error);
  return run.state;
}

function runDetails(id) {
  const run = data.runs[id];
  const setting = data.settings[run.setting];
  const facts = {
    run: id,
    setting: setting.subtitle,
    state: run.why ? `${run.state}: ${run.why}` : run.state,
    'test error': Number.isFinite(run.test_error) ? `${percent(run.test_error)} (best ${percent(run.best_test_error)})` : null,
    'training loss': Number.isFinite(run.train_loss) ? significant(run.train_loss) : null,
    epochs: `${significant(run.epochs_done ?? 0)} of ${run.epochs ?? '?'}`,
    parameters: run.parameters ? `${run.parameters.toLocaleString('en')}, ${run.slopes ?? 0} of them in units` : null,
    training: run.seconds ? `${significant(run.seconds, 3)} s` : null,
  };
  const list = Object.entries(facts)
    .filter(([, value]) => value !== null)
    .flatMap(([name, value]) => [node('dt', {}, name), node('dd', {}, value)]);
  return node('div', {},
    node('dl', {}, list),
    node('p', {}, 'Again: ', node('code', { class: 'command' }, `${run.command}${data.store}`)),
    node('p', {}, 'Its curves and shapes: ', node('code', { class: 'command' }, `splash show ${id.slice(0, 8)}${data.store}`)),
    node('p', { class: 'note' }, 'Its spec, without what is left at the defaults:'),
    node('pre', { tabindex: 0 }, JSON.stringify(run.spec, null, 2)));
}

function openPicture(place) {
  const pictures = data.pictures;
  const at = (place + pictures.length) % pictures.length;
  const picture = pictures[at];
  const image = (source, words) => node('figure', { style: 'margin:0' }, node('img', { src: source, alt: words }), node('figcaption', {}, words));
  const previous = node('button', { type: 'button' }, '← previous');
  const next = node('button', { type: 'button' }, 'next →');
  previous.addEventListener('click', () => openPicture(at - 1));
  next.addEventListener('click', () => openPicture(at + 1));
  openDialog(`${picture.unit}: ${picture.attack}`,
    node('div', { class: 'triple', 'data-place': at },
      image(picture.clean, 'before'), image(picture.adversarial, 'after the attack'), image(picture.difference, picture.magnified)),
    node('p', {}, picture.verdict),
    node('p', {}, previous, ' ', next),
    runDetails(picture.run));
}

function makeCopyable(code) {
  if (code.dataset.copyable) return;
  code.dataset.copyable = 'yes';
  code.title = 'Copy';
  code.tabIndex = 0;
  code.setAttribute('role', 'button');
  const copy = () => {
    const words = code.textContent;
    navigator.clipboard?.writeText(words).then(() => {
      code.classList.add('copied');
      speak('Copied');
      setTimeout(() => code.classList.remove('copied'), 1200);
    }, () => getSelection().selectAllChildren(code));
  };
  code.addEventListener('click', copy);
  code.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') copy();
  });
}

function startDialogs() {
  const dialog = $('details');
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog || event.target.closest('[data-close]')) dialog.close();
  });
  dialog.addEventListener('keydown', (event) => {
    const shown = dialog.querySelector('[data-place]');
    if (shown && event.key === 'ArrowLeft') openPicture(Number(shown.dataset.place) - 1);
    if (shown && event.key === 'ArrowRight') openPicture(Number(shown.dataset.place) + 1);
  });
  dialog.addEventListener('close', () => {
    if (location.hash.startsWith('#run=')) history.replaceState(null, '', location.pathname + location.search);
  });
  document.addEventListener('click', (event) => {
    const number = event.target.closest('.number-link');
    const picture = event.target.closest('.picture');
    if (number) openRuns(number.dataset.runs.split(' '));
    else if (picture) openPicture(Number(picture.dataset.picture));
  });
  document.querySelectorAll('code.command').forEach(makeCopyable);
  const follow = () => {
    if (location.hash.startsWith('#run=')) openRuns([location.hash.slice(5)]);
  };
  addEventListener('hashchange', follow);
  follow();
}
