// The data behind the page, and the few functions that make elements of it.
// Text always goes in as text: nothing here parses HTML.

const data = JSON.parse(document.getElementById('payload').textContent);
const OURS = 'SPLASH';

const $ = (id) => document.getElementById(id);

function node(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const percent = (value, digits = 2) => `${(100 * value).toFixed(digits)} %`;

function significant(value, digits = 4) {
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) return value.toExponential(digits - 2);
  return String(Number(value.toPrecision(digits)));
}

const unitClass = (unit) => `u${unit}`;

// A line of text for whoever listens instead of looking.
function speak(words) {
  $('spoken').textContent = words;
}

// What a browser may remember of a page; some don't let a file remember anything.
const memory = {
  storage: (kind) => (kind === 'local' ? localStorage : sessionStorage),
  keep(kind, name, value) {
    try {
      this.storage(kind).setItem(name, value);
    } catch {
      // Then the choice holds until the page is left.
    }
  },
  recall(kind, name) {
    try {
      return this.storage(kind).getItem(name);
    } catch {
      return null;
    }
  },
};

const tip = {
  show(x, y, ...content) {
    const box = $('tip');
    box.replaceChildren(...content);
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
    const top = y + 16 + height > innerHeight ? y - 16 - height : y + 16;
    box.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    box.style.top = `${Math.max(8, top)}px`;
  },
  hide() {
    $('tip').hidden = true;
  },
};

// Draw when it comes into sight, and again when its width changes.
const drawers = new Map();
const seen = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
  { rootMargin: '400px' },
);
const sized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const drawer = drawers.get(target);
    if (drawer?.width && drawer.width !== target.clientWidth) draw(target);
  }
});

function drawLater(host, paint) {
  drawers.set(host, { paint, width: 0 });
  seen.observe(host);
  sized.observe(host);
}

function draw(host) {
  const drawer = drawers.get(host);
  if (!drawer || !host.clientWidth) return;
  seen.unobserve(host);
  drawer.width = host.clientWidth;
  drawer.paint(host);
}

function forget(host) {
  drawers.delete(host);
  seen.unobserve(host);
  sized.unobserve(host);
}

function drawAll() {
  for (const [host, drawer] of drawers) if (!drawer.width) draw(host);
}
