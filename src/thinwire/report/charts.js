// Line charts in SVG: every .plot is drawn at its own width, and again when that changes.
"use strict";
const SVG = "http://www.w3.org/2000/svg";
const DASHES = {solid: "none", dash: "7 4", dot: "2 3", dashdot: "8 3 2 3"};
const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const NEAR = 40; // pixels: how far the pointer may be from the point that it is about
const ruler = document.createElement("canvas").getContext("2d");
const hidden = new Map([...document.querySelectorAll("section")].map(section => [section, new Set()]));

function add(parent, name, attributes, text) {
  const element = parent.appendChild(document.createElementNS(SVG, name));
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// ------------------------------------------------------------------------------------------------------- numbers

const superscript = power => [...String(power)].map(sign => "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign] ?? "⁻").join("");
const trimmed = (value, digits) => String(Number(value.toPrecision(digits)));

/** A number that stands alone: three digits, or as many as it takes to tell ticks apart that are `step` away. */
function words(value, {unit, percent}, step) {
  if (percent) return (100 * value).toFixed(decimals(100 * (step ?? 1e-3))) + " %";
  const size = Math.abs(value), [scale, prefix] = (unit !== null && PREFIXES.find(([least]) => size >= least)) || [1, ""];
  const space = unit ? " " : "";
  if (step !== undefined) return (value / scale).toFixed(decimals(step / scale)) + space + prefix + (unit || "");
  if (scale === 1 && value !== 0 && (size < 1e-3 || size >= 1e5)) {
    const power = Math.floor(Math.log10(size) + 1e-9), lead = trimmed(value / 10 ** power, 3);
    return (lead === "1" ? "" : lead + "·") + "10" + superscript(power) + space + (unit || "");
  }
  return trimmed(value / scale, 3) + space + prefix + (unit || "");
}
const decimals = step => Math.max(0, -Math.floor(Math.log10(step) + 1e-9));

/** Round ticks of a linear axis, and how far they are apart. */
function evenTicks(low, high, most) {
  const rough = (high - low) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough * (1 - 1e-9));
  const first = Math.ceil(low / step - 1e-9), count = Math.floor(high / step + 1e-9) - first;
  return {step, values: Array.from({length: count + 1}, (_, place) => (first + place) * step)};
}

/** Ticks of a logarithmic axis: as many of each power of ten as there is room for; even ones where it spans little. */
function powerTicks(low, high, most) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const powers = Array.from({length: last - first + 1}, (_, place) => first + place);
  const inside = value => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9);
  for (const leads of [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1]]) {
    const values = powers.flatMap(power => leads.map(lead => lead * 10 ** power)).filter(inside);
    if (values.length <= most) return values.length > 2 || leads.length < 9 ? {values} : evenTicks(low, high, most);
  }
  const every = Math.ceil(powers.length / most);
  return {values: powers.filter(power => power % every === 0).map(power => 10 ** power).filter(inside)};
}

// ---------------------------------------------------------------------------------------------------------- axes

/** An axis over what is drawn: where a value lies between 0 and 1, and its ticks. */
function axisOf(values, about) {
  const [low, high] = bounds(values, about), of = about.log ? Math.log10 : value => value;
  const span = of(high) - of(low);
  return {...about, share: value => (of(value) - of(low)) / span,
          ticks: most => (about.log ? powerTicks : evenTicks)(low, high, Math.max(2, Math.floor(most)))};
}

function bounds(drawn, {log, zero, percent, span}) {
  const values = span ?? drawn, [low, high] = values.reduce(([l, h], value) => [Math.min(l, value), Math.max(h, value)], [Infinity, -Infinity]);
  if (low > high) return log ? [1, 10] : [0, 1];
  if (log) return low < high ? [low / (high / low) ** .04, high * (high / low) ** .04] : [low / 2, high * 2];
  if (zero) return [Math.min(0, low), high > 0 ? high : 1];
  const room = .05 * (high - low || Math.abs(high) || 1);
  return [percent && low >= 0 ? Math.max(0, low - room) : low - room, percent && high <= 1 ? Math.min(1, high + room) : high + room];
}

function shown(chart, section) {
  const drawable = (x, y) => x !== null && y !== null && (!chart.x.log || x > 0) && (!chart.y.log || y > 0);
  return chart.series.filter(series => !hidden.get(section).has(series.label)).map(series => {
    const kept = series.x.flatMap((x, place) => drawable(x, series.y[place]) ? [place] : []);
    const pick = values => values.length ? kept.map(place => values[place]) : [];
    return {...series, x: pick(series.x), y: pick(series.y), low: pick(series.low), high: pick(series.high)};
  });
}

// ------------------------------------------------------------------------------------------------------- drawing

function draw(plot) {
  const chart = charts[Number(plot.dataset.chart)], lines = shown(chart, plot.closest("section"));
  const x = axisOf(lines.flatMap(line => line.x), chart.x);
  const y = axisOf(lines.flatMap(line => [...line.y, ...line.low, ...line.high].filter(v => !chart.y.log || v > 0)), chart.y);
  const width = plot.clientWidth, height = plot.clientHeight, top = chart.y.title ? 34 : 12, bottom = height - 44;
  ruler.font = "12px " + getComputedStyle(document.body).fontFamily;
  const yTicks = labelled(y, y.ticks((bottom - top) / 34));
  const left = 14 + Math.ceil(Math.max(0, ...yTicks.map(([, text]) => ruler.measureText(text).width))), right = width - 16;
  const across = value => left + x.share(value) * (right - left), up = value => bottom - y.share(value) * (bottom - top);

  plot.replaceChildren();
  const svg = add(plot, "svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": plot.dataset.title});
  for (const [value, text] of yTicks) {
    add(svg, "line", {class: "grid", x1: left, x2: right, y1: up(value), y2: up(value)});
    add(svg, "text", {class: "tick", x: left - 8, y: up(value) + 4, "text-anchor": "end"}, text);
  }
  for (const [value, text] of apart(labelled(x, x.ticks((right - left) / 52)), across)) {
    add(svg, "line", {class: "grid", x1: across(value), x2: across(value), y1: top, y2: bottom});
    add(svg, "text", {class: "tick", x: across(value), y: bottom + 18, "text-anchor": "middle"}, text);
  }
  add(svg, "line", {class: "axis", x1: left, x2: right, y1: bottom, y2: bottom});
  add(svg, "text", {class: "title", x: (left + right) / 2, y: height - 6, "text-anchor": "middle"}, chart.x.title);
  if (chart.y.title) add(svg, "text", {class: "title", x: 4, y: 17}, chart.y.title);
  for (const line of lines) addBand(svg, line, across, value => up(chart.y.log ? Math.max(value, Math.min(...line.y)) : value));
  for (const line of lines) addLine(svg, line, across, up);
  follow(plot, svg, lines, chart, across, up);
}

const labelled = (axis, {values, step}) => values.map(value => [value, words(value, axis, step)]);

/** Ticks whose labels do not touch; powers of ten go before what lies between them. */
function apart(ticks, across) {
  const kept = [], round = ([value]) => Math.abs(Math.log10(Math.abs(value)) % 1) < 1e-9 ? 0 : 1;
  for (const [value, text] of [...ticks].sort((a, b) => round(a) - round(b) || a[0] - b[0])) {
    const half = ruler.measureText(text).width / 2 + 5, at = across(value);
    if (kept.every(other => Math.abs(other.at - at) >= half + other.half)) kept.push({at, half, tick: [value, text]});
  }
  return kept.map(({tick}) => tick);
}

function addBand(svg, line, across, up) {
  if (!line.y.some((_, place) => line.high[place] > line.low[place])) return;
  const edge = values => line.x.map((value, place) => `${across(value).toFixed(1)},${up(values[place]).toFixed(1)}`);
  add(svg, "polygon", {points: [...edge(line.high), ...edge(line.low).reverse()].join(" "), opacity: .15, style: `fill: ${line.colour}`});
}

function addLine(svg, line, across, up) {
  const points = line.x.map((value, place) => [across(value).toFixed(1), up(line.y[place]).toFixed(1)]);
  add(svg, "polyline", {class: "line", points: points.join(" "), style: `stroke: ${line.colour}`, "stroke-dasharray": DASHES[line.dash]});
  if (points.length > 12) return;
  for (const [cx, cy] of points) add(svg, "circle", {cx, cy, r: 2.8, style: `fill: ${line.colour}`});
}

/** Say which point is nearest to the pointer. */
function follow(plot, svg, lines, chart, across, up) {
  const mark = add(svg, "circle", {class: "mark", r: 5, visibility: "hidden"});
  const tip = plot.appendChild(document.createElement("div"));
  tip.className = "tip";
  tip.hidden = true;
  const points = lines.flatMap(line => line.x.map((x, place) => ({line, x, y: line.y[place], at: [across(x), up(line.y[place])]})));
  const leave = () => { tip.hidden = true; mark.setAttribute("visibility", "hidden"); };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), away = ({at}) => Math.hypot(at[0] + box.left - event.clientX, at[1] + box.top - event.clientY);
    const near = points.reduce((best, point) => away(point) < away(best) ? point : best, points[0]);
    if (!near || away(near) > NEAR) return leave();
    mark.setAttribute("cx", near.at[0]);
    mark.setAttribute("cy", near.at[1]);
    mark.setAttribute("style", `stroke: ${near.line.colour}`);
    mark.setAttribute("visibility", "visible");
    tip.textContent = `${near.line.label}\n${words(near.y, chart.y)} at ${words(near.x, chart.x)} ${chart.x.noun}`;
    tip.hidden = false;
    tip.style.left = Math.max(0, Math.min(near.at[0] + 12, plot.clientWidth - tip.offsetWidth)) + "px";
    tip.style.top = (near.at[1] > 60 ? near.at[1] - tip.offsetHeight - 10 : near.at[1] + 14) + "px";
  });
}

// --------------------------------------------------------------------------------------------------------- begin

for (const button of document.querySelectorAll("button.key")) {
  button.addEventListener("click", () => {
    const section = button.closest("section"), labels = hidden.get(section), label = button.dataset.label;
    labels.has(label) ? labels.delete(label) : labels.add(label);
    for (const other of section.querySelectorAll("button.key")) {
      other.setAttribute("aria-pressed", String(!labels.has(other.dataset.label)));
    }
    section.querySelectorAll(".plot").forEach(draw);
  });
}
const widths = new ResizeObserver(entries => entries.forEach(({target}) => draw(target)));
document.querySelectorAll(".plot").forEach(plot => widths.observe(plot));
