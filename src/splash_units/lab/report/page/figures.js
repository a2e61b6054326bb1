// The studies' figures: Vega charts, drawn when they come into sight, without evaluating code.

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
}

// The same chart in the colours of a dark page; data are left alone.
function recoloured(part, colours) {
  if (typeof part === 'string') return colours[part] ?? part;
  if (Array.isArray(part)) return part.map((one) => recoloured(one, colours));
  if (part === null || typeof part !== 'object') return part;
  return Object.fromEntries(Object.entries(part).map(([key, value]) =>
    [key, key === 'values' || key === 'datasets' ? value : recoloured(value, colours)]));
}

function drawFigures() {
  for (const host of document.querySelectorAll('[data-figure]')) {
    const chart = data.figures[Number(host.dataset.figure)];
    drawLater(host, async () => {
      const colours = isDark() ? data.dark : { white: 'transparent' };
      await vegaEmbed(host, recoloured(chart, colours), {
        ast: true, actions: false, renderer: 'svg', defaultStyle: false, logLevel: 1,
        tooltip: { theme: 'custom', disableDefaultStyle: true },
      });
      host.dataset.drawn = 'yes';
    });
  }
}
