"use strict";
// Draws the page's line charts with the axes the reader chooses, tells values, sorts tables, saves pictures and figures.
// lineChart and what it calls do what charts.py and scales.py do; tests/end_to_end/test_report_in_browser.py compares.
(() => {
const {look, plots, pictures} = JSON.parse(document.getElementById("data").textContent);
const [LEFT, RIGHT, TOP, BOTTOM] = look.margins;
const BYTES = ["B", "kB", "MB", "GB", "TB", "PB"];

// ---- numbers and scales -------------------------------------------------------------------------------------------
function general(value, digits) {  // as %g writes it: [mantissa, exponent or null]
  if (value === 0) return ["0", null];
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const power = Number(exponent);
  if (power < -4 || power >= digits) return [String(Number(mantissa)), power];
  return [String(Number(value.toFixed(Math.max(0, digits - 1 - power)))), null];
}

function formatNumber(value, digits = 6) {
  if (value === null || !Number.isFinite(value)) return "–";
  const [mantissa, power] = general(value, digits);
  if (power === null) return mantissa;
  const raised = "10" + String(power).replace(/[-\d]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]));
  return mantissa === "1" ? raised : `${mantissa}·${raised}`;
}

function formatBytes(value) {
  let rounded = Number(value.toPrecision(3)), power = 0;
  while (Math.abs(rounded) >= 1000 && power + 1 < BYTES.length) { rounded /= 1000; power += 1; }
  return `${Number(rounded.toPrecision(3))} ${BYTES[power]}`;
}

function formatSeconds(value) {
  const size = Math.abs(Number(value.toPrecision(3)));
  const [factor, suffix] = size >= 1 || size === 0 ? [1, " s"] : size >= 1e-3 ? [1e-3, " ms"] : [1e-6, " µs"];
  const rounded = Number((value / factor).toPrecision(3));
  const grouped = rounded >= 1000 && rounded < 1e6;
  return (grouped ? String(Math.round(rounded)).replace(/\B(?=(\d{3})+$)/g, ",") : formatNumber(rounded, 3)) + suffix;
}

const UNITS = {
  bytes: formatBytes, number: (value) => formatNumber(value), seconds: formatSeconds,
  percent: (value) => formatNumber(100 * value) + " %",
};

function linearTicks(low, high, most = 6) {
  if (high <= low) return [low];
  const power = Math.floor(Math.log10((high - low) / most));
  for (const factor of [1, 2, 5, 10, 20]) {
    const step = factor * 10 ** power;
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    if (last - first < most) return Array.from({length: last - first + 1}, (_, at) => Number(((first + at) * step).toPrecision(12)));
  }
  return [low, high];
}

function logTicks(low, high, most = 6) {
  const bottom = Math.floor(Math.log10(low)), top = Math.ceil(Math.log10(high));
  const decades = Array.from({length: top - bottom + 1}, (_, at) => bottom + at);
  const fine = decades.flatMap((d) => [1, 2, 5].map((digit) => Number(`${digit}e${d}`))).filter((t) => low <= t && t <= high);
  if (fine.length < 3) return linearTicks(low, high, most);
  if (fine.length <= most) return fine;
  const whole = decades.filter((d) => low <= Number(`1e${d}`) && Number(`1e${d}`) <= high);
  const stride = Math.ceil(whole.length / most);
  return whole.filter((d) => d % stride === 0).map((d) => Number(`1e${d}`));
}

function paddedRange(values, log) {
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  if (log) {
    const margin = high > 1.05 * low ? (high / low) ** 0.04 : 1.25;
    return [low / margin, high * margin];
  }
  const margin = high > low ? 0.04 * (high - low) : 0.1 * (Math.abs(high) || 1);
  return [low - margin, high + margin];
}

const place = (value, [low, high], log) => log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
const drawable = (value, log) => value !== null && value !== undefined && Number.isFinite(value) && (value > 0 || !log);

// ---- one chart ----------------------------------------------------------------------------------------------------
const escaped = (words) => words.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const cssColor = (style) => `var(--series-${style % look.colors.length},${look.colors[style % look.colors.length]})`;
const textWidth = (words) => 0.64 * 11 * words.length;
const heading = (axis) => axis.title + (axis.log ? " (log scale)" : "");

function stroke(style) {
  const dash = look.dashes[style % look.dashes.length];
  return `style="stroke:${cssColor(style)}"` + (dash ? ` stroke-dasharray="${dash}"` : "");
}

function line(x1, y1, x2, y2, more) {
  const [a, b, c, d] = [x1, y1, x2, y2].map((v) => v.toFixed(1));
  return `<line x1="${a}" y1="${b}" x2="${c}" y2="${d}" stroke="currentColor" ${more}/>`;
}

const text = (x, y, words, anchor, more = "") =>
  `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" text-anchor="${anchor}" fill="currentColor" ${more}>${escaped(words)}</text>`;
const mark = (x, y, style) => `<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="3.5" style="fill:${cssColor(style)}"/>`;

function cut(rows, keep) {  // rows in pieces, ended by each row that is not kept
  const pieces = [[]];
  for (const row of rows) keep(row) ? pieces.at(-1).push(row) : pieces.push([]);
  return pieces.filter((piece) => piece.length);
}

function rowsOf(entry, x, y) {  // [x, y, standard deviation] at each place
  const xs = entry.columns[x] || [], ys = entry.columns[y] || [], stds = entry.spreads[y] || [];
  const rows = xs.slice(0, ys.length).map((value, at) => [value, ys[at], stds[at] ?? null]);
  if (!entry.steps) return rows;
  return rows.slice(0, -1).flatMap(([a, b], at) => [[a, b, null], [rows[at + 1][0], b, null]]);
}

function pathData(points) {
  const kept = [points[0]];
  for (const point of points.slice(1)) {
    if (Math.max(Math.abs(point[0] - kept.at(-1)[0]), Math.abs(point[1] - kept.at(-1)[1])) >= 0.5) kept.push(point);
  }
  if (kept.length === 1) kept.push([kept[0][0] + 0.1, kept[0][1]]);
  return "M" + kept.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");
}

// view: {x, y} with axes {key, title, unit, log}; shown: which lines; returns the svg and where everything is
function lineChart(plot, view, shown, size, withLegend = false) {
  const {x, y} = view, width = size.width - LEFT - RIGHT, height = size.height - TOP - BOTTOM;
  const pieces = plot.lines.map((entry, at) =>
    shown[at] ? cut(rowsOf(entry, x.key, y.key), (row) => drawable(row[0], x.log) && drawable(row[1], y.log)) : []);
  const points = pieces.flat(2);
  let body = "", across = null, down = null;
  if (!points.length) {
    body = text(width / 2 + LEFT, height / 2 + TOP, "no finite values", "middle");
  } else {
    let heights = points.map((row) => row[1]);
    if (y.log && plot.capped) {
      const starts = plot.lines.map((entry, at) => (shown[at] && (entry.columns[y.key] || []).find((v) => drawable(v, true))) || 0);
      const inside = heights.filter((value) => value <= 100 * Math.max(...starts));
      heights = inside.length ? inside : heights;
    }
    if (!y.log) for (const [, value, std] of points) if (std !== null) heights.push(value - std, value + std);
    const xRange = paddedRange(points.map((row) => row[0]), x.log), yRange = paddedRange(heights, y.log);
    across = (value) => width * place(value, xRange, x.log);
    down = (value) => (y.log && value <= 0 ? height : height * (1 - place(value, yRange, y.log)));
    let written = -1;
    for (const tick of (x.log ? logTicks : linearTicks)(...xRange, 5)) {
      const at = LEFT + across(tick), words = UNITS[x.unit](tick), half = textWidth(words) / 2;
      body += line(at, TOP, at, TOP + height, 'stroke-opacity="0.13"');
      if (at - half > written) { body += text(at, TOP + height + 16, words, "middle"); written = at + half; }
    }
    for (const tick of (y.log ? logTicks : linearTicks)(...yRange)) {
      const at = TOP + down(tick);
      body += line(LEFT, at, LEFT + width, at, 'stroke-opacity="0.13"') + text(LEFT - 6, at + 4, UNITS[y.unit](tick), "end");
    }
    const target = plot.targets[y.key];
    if (drawable(target, y.log) && yRange[0] <= target && target <= yRange[1]) {
      const at = TOP + down(target);
      body += line(LEFT, at, LEFT + width, at, 'class="target" stroke-opacity="0.6" stroke-dasharray="1 3"');
    }
    const curves = plot.lines.map((entry, at) => drawCurve(entry, pieces[at], across, down)).join("");
    body += `<svg x="${LEFT}" y="${TOP}" width="${width}" height="${height}">${curves}</svg>`;
  }
  const named = withLegend ? plot.lines.filter((_, at) => shown[at]) : [];
  const [key, below] = legendRows(named, size.height, width);
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 ${size.width} ${size.height + below}" ` +
    `width="${size.width}" height="${size.height + below}" role="img" ` +
    `aria-label="${escaped(`${heading(y)} against ${heading(x)}`)}" font-size="11">` +
    `<rect x="${LEFT}" y="${TOP}" width="${width}" height="${height}" fill="none" stroke="currentColor" stroke-opacity="0.35"/>` +
    body + text(LEFT, TOP - 12, heading(y), "start", 'font-size="13" font-weight="600"') +
    text(LEFT + width / 2, size.height - 10, heading(x), "middle") + key + "</svg>";
  return {svg, pieces, across, down, width, height};
}

function drawCurve(entry, pieces, across, down) {
  if (!pieces.length) return '<g class="curve"></g>';
  const placed = pieces.map((piece) => piece.map(([x, y]) => [across(x), down(y)]));
  if (entry.points) return `<g class="curve">${placed.flat().map(([x, y]) => mark(x, y, entry.style)).join("")}</g>`;
  const area = pieces.flatMap((piece) => cut(piece, (row) => row[2] !== null)).map((piece) =>
    pathData([...piece.map(([x, y, std]) => [across(x), down(y + std)]),
      ...piece.map(([x, y, std]) => [across(x), down(y - std)]).reverse()]) + "Z").join("");
  const [x, y] = placed.at(-1).at(-1);
  return `<g class="curve" ${stroke(entry.style)} fill="none" stroke-linejoin="round">` +
    (area && `<path class="band" d="${area}" style="fill:${cssColor(entry.style)}" fill-opacity="0.16" stroke="none" stroke-opacity="0"/>`) +
    `<path class="line" d="${placed.map(pathData).join("")}" stroke-width="2"/>` +
    `<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="1.5" stroke-width="3" stroke-dasharray="none"/></g>`;
}

function legendRows(lines, top, width) {
  let body = "", x = LEFT, y = top;
  for (const {label, style, points} of lines) {
    const most = Math.max(3, Math.floor((width - 44) / (0.64 * 11)));
    const words = label.length <= most ? label : label.slice(0, most - 1) + "…", wide = 44 + textWidth(words) + 16;
    if (x > LEFT && x + wide > LEFT + width) { x = LEFT; y += 18; }
    body += points ? mark(x + 18, y + 9, style)
      : `<line x1="${x + 1}" y1="${y + 9}" x2="${x + 35}" y2="${y + 9}" ${stroke(style)} stroke-width="2.5"/>`;
    body += text(x + 44, y + 13, words, "start");
    x += wide;
  }
  return [body, lines.length ? y + 18 - top : 0];
}

// ---- small helpers of the page ------------------------------------------------------------------------------------
function make(tag, settings = {}, ...children) {
  const made = Object.assign(document.createElement(tag), settings);
  made.append(...children);
  return made;
}

const tip = document.getElementById("tip");
function tell(content, x, y) {  // beside the point, inside the window
  tip.replaceChildren(content);
  tip.hidden = false;
  const {width, height} = tip.getBoundingClientRect();
  const right = document.documentElement.clientWidth, left = x + 16 + width < right ? x + 16 : x - 16 - width;
  tip.style.left = `${Math.max(8, Math.min(left, right - width - 8))}px`;
  tip.style.top = `${Math.max(8, Math.min(y + 16, innerHeight - height - 8))}px`;
}
const hush = () => { tip.hidden = true; };

function save(name, type, content) {
  const link = make("a", {download: name, href: URL.createObjectURL(new Blob([content], {type}))});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// A copy of a drawn picture that needs no page: colours as they are seen, a ground, a font.
function standalone(svg) {
  const copy = svg.cloneNode(true), body = getComputedStyle(document.body);
  const width = svg.viewBox.baseVal.width + 20, height = svg.viewBox.baseVal.height + 20;  // a margin around it
  const originals = [svg, ...svg.querySelectorAll("*")], copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((element, at) => {
    const seen = getComputedStyle(element);
    copies[at].removeAttribute("style");
    for (const name of ["fill", "stroke"]) if (element.matches("path,line,rect,circle,text,g")) copies[at].setAttribute(name, seen[name]);
    if (element.localName === "g") for (const name of ["class", "opacity"]) copies[at].removeAttribute(name);
  });
  copy.querySelectorAll(".cursor").forEach((cursor) => cursor.remove());
  const set = (element, pairs) => Object.entries(pairs).forEach(([name, value]) => element.setAttribute(name, value));
  set(copy, {xmlns: "http://www.w3.org/2000/svg", viewBox: `-10 -10 ${width} ${height}`, width, height,
    "font-family": body.fontFamily, color: body.color});
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  set(ground, {x: -10, y: -10, width, height, fill: body.backgroundColor});
  copy.prepend(ground);
  return {text: new XMLSerializer().serializeToString(copy), width, height};
}

function savePng(name, picture) {
  const image = new Image();
  image.onload = () => {
    const canvas = make("canvas", {width: 2 * picture.width, height: 2 * picture.height});
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(name, "image/png", blob));
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(picture.text);
}

function csv(rows) {
  const cell = (value) => (/[",\n]/.test(String(value ?? "")) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  return rows.map((row) => row.map(cell).join(",") + "\n").join("");
}

function saveButtons(name, picture, rows) {  // name, picture and rows are asked when a button is pressed
  const button = (words, act) => make("button", {type: "button", textContent: words, title: `save as ${words}`, onclick: act});
  return make("span", {className: "save"},
    button("PNG", () => savePng(`${name()}.png`, picture())),
    button("SVG", () => save(`${name()}.svg`, "image/svg+xml", picture().text)),
    button("CSV", () => save(`${name()}.csv`, "text/csv", csv(rows()))));
}

// ---- line charts --------------------------------------------------------------------------------------------------
const shown = Object.fromEntries(Object.entries(plots).map(([name, plot]) => [name, plot.lines.map(() => true)]));
const charts = [];  // {plot: name, draw, point}

function setUpChart(figure) {
  const name = figure.dataset.plot, plot = plots[name], drawing = figure.querySelector(".drawing");
  const view = {};
  let drawn = null, cursor = null;
  const choose = (axis, axes, key) => { view[axis] = {key, ...axes[key]}; };
  choose("x", plot.xs, Object.keys(plot.xs)[0]);
  choose("y", plot.ys, figure.dataset.y);

  function sizeOf(width) { return {width, height: Math.round(Math.min(420, Math.max(270, 0.62 * width)))}; }
  function draw() {
    const width = Math.min(800, Math.floor(drawing.clientWidth));
    if (width < 120) return;  // in a closed part of the page: drawn when it opens
    drawn = lineChart(plot, view, shown[name], sizeOf(width));
    drawing.innerHTML = drawn.svg;
    cursor = null;
  }

  function nearest(px) {  // of each visible curve the point nearest to this x
    const found = [];
    drawn.pieces.forEach((pieces, at) => {
      let best = null, first = Infinity, last = -Infinity;
      for (const row of pieces.flat()) {
        const x = drawn.across(row[0]), apart = Math.abs(x - px);
        first = Math.min(first, x);
        last = Math.max(last, x);
        if (!best || apart < best.apart) best = {apart, x, y: drawn.down(row[1]), row, entry: plot.lines[at]};
      }
      if (best && px > first - 12 && px < last + 12) found.push(best);
    });
    return found;
  }

  function point(px, py, clientX, clientY) {
    const svg = drawing.querySelector("svg.chart");
    svg.querySelector(".cursor")?.remove();
    cursor = null;
    if (!drawn?.across || px < 0 || px > drawn.width || py < 0 || py > drawn.height) return hush();
    const found = nearest(px).sort((a, b) => a.y - b.y);
    if (!found.length) return hush();
    cursor = px;
    const close = found.reduce((a, b) => (Math.abs(b.y - py) < Math.abs(a.y - py) ? b : a));
    const listed = found.length <= 14 ? found
      : [...found].sort((a, b) => Math.abs(a.y - py) - Math.abs(b.y - py)).slice(0, 14).sort((a, b) => a.y - b.y);
    const group = document.createElementNS("http://www.w3.org/2000/svg", "g");
    group.setAttribute("class", "cursor");
    group.innerHTML = line(LEFT + px, TOP, LEFT + px, TOP + drawn.height, 'stroke-opacity="0.4"') +
      found.filter((one) => one.y >= 0 && one.y <= drawn.height).map((one) => mark(LEFT + one.x, TOP + one.y, one.entry.style)).join("");
    svg.append(group);
    tell(make("table", {}, make("tbody", {}, ...listed.map((one) => {
      const [x, y, std] = one.row, row = make("tr", {className: one === close ? "near" : ""});
      row.innerHTML = `<td><i style="display:inline-block;width:9px;height:9px;border-radius:5px;background:${cssColor(one.entry.style)}"></i></td>`;
      row.append(make("td", {className: "name", textContent: one.entry.label}),
        make("td", {textContent: UNITS[view.y.unit](y) + (std ? ` ± ${formatNumber(view.y.unit === "percent" ? 100 * std : std, 2)}` : "")}),
        make("td", {textContent: `${plot.xs[view.x.key].unit === "number" ? `${view.x.title} ` : ""}${UNITS[view.x.unit](x)}`}));
      return row;
    }))), clientX, clientY);
  }

  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.querySelector("svg.chart").getBoundingClientRect();
    point(event.clientX - box.left - LEFT, event.clientY - box.top - TOP, event.clientX, event.clientY);
  });
  const leave = () => { drawing.querySelector(".cursor")?.remove(); cursor = null; hush(); };
  drawing.addEventListener("pointerleave", leave);
  drawing.addEventListener("blur", leave);
  drawing.addEventListener("keydown", (event) => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step || !drawn?.across) return;
    event.preventDefault();
    const box = drawing.getBoundingClientRect();
    const px = Math.max(0, Math.min(drawn.width, (cursor ?? drawn.width / 2) + step * drawn.width / 40));
    point(px, drawn.height / 2, box.left + LEFT + px, box.top + TOP);
  });
  drawing.tabIndex = 0;
  drawing.setAttribute("aria-label", "chart; arrow keys move along it");

  const tools = make("div", {className: "tools"});
  for (const [axis, axes] of [["y", plot.ys], ["x", plot.xs]]) {
    const log = make("input", {type: "checkbox", checked: view[axis].log});
    log.dataset.axis = axis;
    log.onchange = () => { view[axis].log = log.checked; draw(); };
    if (Object.keys(axes).length > 1) {
      const options = Object.entries(axes).map(([key, {title}]) => make("option", {value: key, textContent: title, selected: key === view[axis].key}));
      const select = make("select", {}, ...options);
      select.dataset.axis = axis;
      select.onchange = () => { choose(axis, axes, select.value); log.checked = view[axis].log; draw(); };
      tools.append(make("label", {}, axis, select));
    }
    tools.append(make("label", {}, log, `log ${axis}`));
  }
  tools.append(saveButtons(() => `${name}-${view.y.key}-${view.x.key}`, () => {
    const host = make("div", {innerHTML: lineChart(plot, view, shown[name], sizeOf(640), true).svg});
    host.style.cssText = "position:absolute;left:-9999px;top:0";
    document.body.append(host);
    try { return standalone(host.firstChild); } finally { host.remove(); }
  }, () => [["curve", view.x.key, view.y.key, `${view.y.key}_std`, "seeds"],
    ...plot.lines.filter((_, at) => shown[name][at]).flatMap((entry) => (entry.columns[view.x.key] || []).map((x, at) =>
      [entry.label, x, entry.columns[view.y.key]?.[at], entry.spreads[view.y.key]?.[at], entry.seeds]))]));
  figure.append(tools);
  charts.push({plot: name, draw, figure});
  let width = 0;
  new ResizeObserver(() => { if (drawing.clientWidth !== width) { width = drawing.clientWidth; draw(); } }).observe(figure);
  draw();
}

// A legend switches the curves of all charts of its plot; pointing at an entry fades the others.
function setUpLegend(list) {
  const name = list.dataset.plot, own = () => charts.filter((chart) => chart.plot === name);
  const buttons = [...list.children].map((item, at) => {
    const button = make("button", {type: "button"}, ...item.childNodes);
    item.append(button);
    button.onclick = () => { shown[name][at] = !shown[name][at]; refresh(); fade(null); };
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => fade(shown[name][at] ? at : null));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => fade(null));
    return button;
  });
  function fade(chosen) {
    for (const {figure} of own()) {
      const svg = figure.querySelector("svg.chart");
      svg.classList.toggle("pointed", chosen !== null);
      svg.querySelectorAll(".curve").forEach((curve, at) => curve.classList.toggle("chosen", at === chosen));
    }
  }
  const all = make("button", {type: "button", className: "all"});
  all.onclick = () => { const on = !shown[name].every(Boolean); shown[name].fill(on); refresh(); };
  function refresh() {
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(shown[name][at])));
    all.textContent = shown[name].every(Boolean) ? "hide all" : "show all";
    own().forEach((chart) => chart.draw());
  }
  if (buttons.length > 2) list.append(make("li", {}, all));
  refresh();
}

// ---- other pictures, tables, theme --------------------------------------------------------------------------------
function setUpPicture(figure) {
  const {columns, rows, cells} = pictures[figure.dataset.picture], svg = figure.querySelector("svg");
  figure.append(make("div", {className: "tools"}, saveButtons(() => figure.dataset.picture, () => standalone(svg), () => [columns, ...rows])));
  for (const title of svg.querySelectorAll("title")) {  // ours comes at once, and on a touch screen too
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }
  function pointed(event) {
    if (!cells) return event.target.closest("[data-tip]")?.dataset.tip;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const row = rows[Math.floor((at.y - cells.top) / cells.height)], column = Math.floor((at.x - cells.left) / cells.width);
    if (!row || at.x >= cells.left + cells.width * (columns.length - 2)) return "";
    const size = row[1] ? ` (${row[1].toLocaleString("en")} values)` : "";
    return column < 0 ? row[0] + size : `${row[0]}${size}, ${columns[2 + column]}: ${row[2 + column] === null ? "not finite" : formatNumber(row[2 + column], 4)}`;
  }
  svg.addEventListener("pointermove", (event) => {
    const words = pointed(event);
    words ? tell(words, event.clientX, event.clientY) : hush();
  });
  svg.addEventListener("pointerleave", hush);
}

function setUpTable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, at) => {
    const button = make("button", {type: "button", title: "sort"}, ...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[at].dataset.order;
      const number = [...body.rows].every((row) => key(row) === undefined || Number.isFinite(Number(key(row))));
      const compare = (a, b) => (number ? Number(a) - Number(b) : a.localeCompare(b, "en", {numeric: true})) * (up ? 1 : -1);
      body.append(...[...body.rows].sort((a, b) =>  // what is not known stands last either way
        key(a) === undefined || key(b) === undefined ? (key(a) === undefined) - (key(b) === undefined) : compare(key(a), key(b))));
    };
  });
}

const theme = document.getElementById("theme"), themes = ["auto", "light", "dark"];
theme.hidden = false;
theme.onclick = () => {
  const next = themes[(themes.indexOf(document.documentElement.dataset.theme || "auto") + 1) % 3];
  document.documentElement.dataset.theme = next;
  theme.textContent = `theme: ${next}`;
};
document.documentElement.classList.add("ready");
document.querySelectorAll("figure.plot").forEach(setUpChart);
document.querySelectorAll("ul.legend").forEach(setUpLegend);
document.querySelectorAll("figure.picture").forEach(setUpPicture);
document.querySelectorAll("table").forEach(setUpTable);
addEventListener("scroll", hush, {passive: true});
globalThis.thinwire = {lineChart, plots, UNITS, linearTicks, logTicks};  // for tests and for the curious
})();
