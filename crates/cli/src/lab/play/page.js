'use strict';
// Settings of the page <-> the address behind '#' <-> the query of a run: the same names and forms as the options of `tiderace lab new`.
const form = document.getElementById('controls');
const names = ['cubic', 'bbr3', 'auto', 'auto+repair', 'newreno', 'bbr1', 'bbr2', 'cubic+rlc:1/5:40'];
const first = ['cubic', 'bbr3', 'auto'];
const most = 4;

// Sliders: place 0 to 100 -> value. Rates, times and queues are spread by their logarithm.
const log = (low, high) => ({
  value: place => low * (high / low) ** (place / 100),
  place: value => Math.round(Math.log(value / low) / Math.log(high / low) * 100),
});
const scales = {
  rate: {...log(0.2, 200), text: v => `${v}M`, read: t => parseFloat(t), shown: v => `${v} Mbit/s`},
  rtt: {...log(1, 1000), text: v => `${v}ms`, read: t => parseFloat(t), shown: v => `${v} ms`},
  queue: {...log(0.1, 16), text: v => `${v}BDP`, read: t => parseFloat(t), shown: v => `${v} BDP`},
  loss: {value: p => (p / 100) ** 2 * 20, place: v => Math.round(Math.sqrt(v / 20) * 100), text: v => `${v}%`, read: t => parseFloat(t), shown: v => `${v} %`},
  burst: {value: p => p, place: v => v, text: v => `${v}`, read: t => parseInt(t), shown: v => v > 1 ? `${v} on average` : '1: independent'},
  connections: {value: p => p, place: v => v, text: v => `${v}`, read: t => parseInt(t), shown: v => `${v}`},
  duration: {value: p => p, place: v => v, text: v => `${v}s`, read: t => parseInt(t), shown: v => `${v} s`},
};
// Values as people write them: two digits.
const rounded = value => Number(value.toPrecision(2));
// What is not on a place of its slider, as an address may have it, stays as it is until the slider moves.
const values = {};

const fields = form.querySelector('.contenders');
for (const name of names) {
  const label = document.createElement('label');
  const box = Object.assign(document.createElement('input'), {type: 'checkbox', name: 'contender', value: name});
  label.append(box, ' ' + name);
  fields.append(label);
}
const boxes = [...form.querySelectorAll('[name=contender]')];

function show() {
  for (const [name, scale] of Object.entries(scales)) {
    form.elements[name].parentElement.querySelector('output').textContent = scale.shown(values[name]);
  }
  const full = boxes.filter(box => box.checked).length >= most;
  for (const box of boxes) box.disabled = full && !box.checked;
}

// Reads the address, with the usual value for what is missing.
function restore(text) {
  const state = new URLSearchParams(text);
  const usual = {rate: '20M', rtt: '50ms', queue: '1BDP', loss: '0%', burst: '1', connections: '1', duration: '10s'};
  for (const [name, scale] of Object.entries(scales)) {
    const read = scale.read(state.get(name) ?? usual[name]);
    values[name] = Number.isFinite(read) && read >= 0 ? read : scale.read(usual[name]);
    form.elements[name].value = scale.place(values[name]);
  }
  form.elements.workload.value = state.get('workload') ?? 'bulk';
  if (form.elements.workload.selectedIndex < 0) form.elements.workload.selectedIndex = 0;
  form.elements.seed.value = parseInt(state.get('seed') ?? '1') || 1;
  const chosen = state.has('contender') ? state.getAll('contender') : first;
  let left = most;
  for (const box of boxes) box.checked = chosen.includes(box.value) && left-- > 0;
  show();
}

// The longest time that the page may measure at this rate and RTT: a run moves 2 Gbit at most, its start included.
function affordable() {
  const start = Math.max(4, 20 * values.rtt / 1000);
  return Math.max(1, Math.floor(2000 / values.rate - start));
}

function state() {
  const query = new URLSearchParams();
  for (const [name, scale] of Object.entries(scales)) query.set(name, scale.text(values[name]));
  query.set('workload', form.elements.workload.value);
  query.set('seed', form.elements.seed.value || '1');
  for (const box of boxes) if (box.checked) query.append('contender', box.value);
  return query.toString();
}

const element = id => document.getElementById(id);
let running = null, timer = null;
function later(wait) {
  clearTimeout(timer);
  timer = setTimeout(run, wait);
}

// One run at a time: a newer one breaks the older one off.
async function run() {
  if (running) running.abort();
  const own = running = new AbortController();
  const query = state();
  history.replaceState(null, '', '#' + query);
  if (!boxes.some(box => box.checked)) { element('state').textContent = 'Choose a contender.'; return; }
  element('state').textContent = 'Running …';
  element('state').className = '';
  try {
    const answer = await fetch('run?' + query, {signal: own.signal});
    const outcome = await answer.json();
    if (own !== running) return;
    if (!answer.ok) throw new Error(outcome.error);
    draw(outcome);
    document.body.dataset.ready = query;
  } catch (error) {
    if (error.name === 'AbortError') return;
    element('state').textContent = error.message === 'Failed to fetch' ? 'The program has ended: start `tiderace lab play` again.' : error.message;
    element('state').className = 'bad';
    document.body.dataset.ready = 'error';
  }
}

const digits = value => value === null ? '–' : Number(value.toPrecision(4)).toLocaleString('en', {maximumSignificantDigits: 4});
const cell = (row, text, kind = 'td') => { const made = document.createElement(kind); made.textContent = text; row.append(made); return made; };

function draw(outcome) {
  const virtual = outcome.measured[1];
  element('state').textContent = `${virtual.toFixed(0)} virtual seconds for each of ${outcome.contenders.length}, in ${outcome.took.toFixed(2)} s. Figures count from ${outcome.measured[0].toFixed(0)} s on.`;
  element('title').textContent = outcome.title;
  element('scenario').textContent = outcome.scenario;
  const table = element('figures');
  table.replaceChildren();
  const head = table.insertRow();
  cell(head, '', 'th');
  outcome.contenders.forEach((one, index) => { cell(head, one.name, 'th').className = 'k' + index; });
  outcome.contenders[0].figures.forEach((figure, place) => {
    const row = table.insertRow();
    cell(row, figure.label + (figure.unit ? ` (${figure.unit})` : '')).title = figure.meaning;
    const all = outcome.contenders.map(one => one.failed ? null : one.figures[place].value);
    const known = all.filter(value => value !== null);
    const best = figure.better === 'higher' ? Math.max(...known) : figure.better === 'lower' ? Math.min(...known) : null;
    for (const value of all) if (cell(row, digits(value)) && known.length > 1 && value !== null && value === best) row.lastChild.className = 'best';
  });
  const failed = outcome.contenders.filter(one => one.failed).map(one => `${one.name}: ${one.failed}`);
  if (failed.length) { element('state').textContent += ' Not usable: ' + failed.join('; '); element('state').className = 'bad'; }
  const over = name => outcome.contenders.map(one => one.series.at.map((at, index) => [at, one.series[name][index]]));
  const spread = name => outcome.contenders.map(one => {
    const found = one.spread[name] ?? [];
    return found.map((value, index) => [value, found.length > 1 ? index / (found.length - 1) * 100 : 50]);
  });
  element('plots').replaceChildren(...[
    ['Rate at the bottleneck', 's', 'Mbit/s', over('rate'), outcome.measured],
    ['Wait in its queue', 's', 'ms', over('queue'), outcome.measured],
    ['Congestion window of the first connection', 's', 'kB', over('window'), outcome.measured],
    ['Bytes in flight of the first connection', 's', 'kB', over('flight'), outcome.measured],
    ['RTT: share of samples below', 'ms', '%', spread('RTT'), null],
    ['Latency: share of samples below', 'ms', '%', spread('latency'), null],
  ].filter(([, , , lines]) => lines.some(line => line.length)).map(plot => picture(outcome.contenders, ...plot)));
}

const svg = (name, attributes, parent) => {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
};

// A step that people read: 1, 2 or 5 times a power of ten, some four to an axis.
function step(span) {
  const raw = span / 4, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map(factor => factor * power).find(size => size >= raw);
}

function picture(contenders, heading, across, up, lines, measured) {
  const figure = document.createElement('figure');
  const caption = document.createElement('figcaption');
  caption.textContent = `${heading} (${up === '%' ? '%' : up})`;
  figure.append(caption);
  const [width, height, left, right, top, bottom] = [420, 200, 46, 8, 8, 28];
  const points = lines.flat().filter(([x, y]) => x !== null && y !== null);
  const widest = measured ? measured[1] : Math.max(...points.map(point => point[0]), 1e-9);
  const highest = up === '%' ? 100 : Math.max(...points.map(point => point[1]), 1e-9) * 1.05;
  const x = value => left + value / widest * (width - left - right), y = value => height - bottom - value / highest * (height - top - bottom);
  const drawing = svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', class: 'plot', 'aria-label': heading});
  if (measured) svg('rect', {class: 'warm', x: left, y: top, width: Math.max(0, x(measured[0]) - left), height: height - top - bottom}, drawing);
  for (let value = 0; value <= highest; value += step(highest)) {
    svg('line', {class: 'axis', x1: left, x2: width - right, y1: y(value), y2: y(value)}, drawing);
    svg('text', {x: left - 4, y: y(value) + 4, 'text-anchor': 'end'}, drawing).textContent = digits(value);
  }
  for (let value = 0; value <= widest; value += step(widest)) {
    svg('text', {x: x(value), y: height - 8, 'text-anchor': 'middle'}, drawing).textContent = digits(value) + (value ? '' : ' ' + across);
  }
  lines.forEach((line, index) => {
    // A value that is not there is a gap.
    let pen = 'M';
    const path = line.map(([at, value]) => {
      if (at === null || value === null) { pen = 'M'; return ''; }
      const part = `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = 'L';
      return part;
    }).join('');
    if (path) svg('title', {}, svg('path', {class: 'c' + index, d: path}, drawing)).textContent = contenders[index].name;
  });
  figure.append(drawing);
  return figure;
}

form.addEventListener('input', event => {
  const scale = scales[event.target.name];
  if (scale) values[event.target.name] = rounded(scale.value(Number(event.target.value)));
  if (values.duration > affordable()) form.elements.duration.value = values.duration = affordable();
  show();
  later(120);
});
form.addEventListener('submit', event => event.preventDefault());
for (const button of form.querySelectorAll('[data-state]')) {
  button.addEventListener('click', () => {
    const chosen = new URLSearchParams(button.dataset.state);
    for (const box of boxes) if (box.checked) chosen.append('contender', box.value);
    restore(chosen.toString());
    later(0);
  });
}
window.addEventListener('hashchange', () => {
  if (location.hash.slice(1) !== state()) { restore(location.hash.slice(1)); later(0); }
});

async function copy(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'The browser refuses: copy it by hand';
  }
  setTimeout(() => { button.textContent = before; }, 2000);
}
element('link').addEventListener('click', event => copy(event.target, location.href));
element('copy').addEventListener('click', event => copy(event.target, element('scenario').textContent));

restore(location.hash.slice(1));
later(0);
