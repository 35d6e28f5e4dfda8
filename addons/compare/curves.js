// Draws the curves of each chart as SVG, with the number of the run at the end of each, and a legend.
const COLORS = ["#1f7fc4", "#cc660c", "#2a9437", "#d8453f", "#8f6fc4", "#a06b5b", "#cf55a8", "#7b7f83", "#87870f", "#128f9e"]; // contrast above 3 on both themes
const DASHES = ["", "6 4", "1.5 3.5"]; // with the colours, 30 different curves
const WIDTH = 560, HEIGHT = 320, LEFT = 56, RIGHT = 26, TOP = 10, BOTTOM = 42;
const LOG_RANGE = 20; // the scale is logarithmic if the largest value is at least this many times the smallest

function s(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const stroke = (number) => ({ stroke: COLORS[number % COLORS.length], "stroke-dasharray": DASHES[number % DASHES.length], "stroke-width": 1.8, fill: "none" });
const swatch = (number) => s("svg", { viewBox: "0 0 28 4", class: "swatch", "aria-hidden": "true" }, s("path", { d: "M0 2H28", ...stroke(number) }));

// Round numbers between two values: multiples of 1, 2 or 5 times a power of ten.
function ticks(low, high, most) {
  const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough)), step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
  const first = Math.ceil(low / step - 1e-9), count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, place) => Number(((first + place) * step).toPrecision(12)));
}
function logTicks(low, high) {
  const powers = ticks(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)), 6);
  return powers.flatMap((power) => (powers.length > 4 ? [1] : [1, 2, 5]).map((each) => Number((each * 10 ** power).toPrecision(6)))).filter((value) => value >= low && value <= high);
}

// An axis: from a value to a place between two ends, with a margin.
function scale(values, from, to, most, isLog) {
  const low = Math.min(...values), high = Math.max(...values), as = isLog ? Math.log : Number;
  const span = as(high) - as(low) || 1, start = as(low) - 0.04 * span;
  const place = (value) => from + ((as(value) - start) / (1.08 * span)) * (to - from);
  return { place, ticks: isLog ? logTicks(low, high) : ticks(low, high, most) };
}

function draw(chart) {
  const curves = Object.entries(chart).map(([number, curve]) => ({ number: Number(number), points: Object.entries(curve).map((point) => point.map(Number)).sort((a, b) => a[0] - b[0]) }));
  const points = curves.flatMap((curve) => curve.points), values = points.map((point) => point[1]);
  const isLog = Math.min(...values) > 0 && LOG_RANGE * Math.min(...values) < Math.max(...values);
  const x = scale(points.map((point) => point[0]), LEFT, WIDTH - RIGHT, 6, false), y = scale(values, HEIGHT - BOTTOM, TOP, 6, isLog);
  const grid = [...x.ticks.map((value) => [s("path", { d: `M${x.place(value)} ${TOP}V${HEIGHT - BOTTOM}`, class: "grid" }), s("text", { x: x.place(value), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, `${value}`)]),
    ...y.ticks.map((value) => [s("path", { d: `M${LEFT} ${y.place(value)}H${WIDTH - RIGHT}`, class: "grid" }), s("text", { x: LEFT - 6, y: y.place(value) + 4, "text-anchor": "end" }, `${value}`)])].flat();
  const lines = curves.map(({ number, points: of }) => {
    const last = of[of.length - 1], title = s("title", {}, `${number + 1}: ${last[1]} at update ${last[0]}`);
    const path = s("path", { d: of.map(([update, value], place) => `${place ? "L" : "M"}${x.place(update).toFixed(1)} ${y.place(value).toFixed(1)}`).join(""), ...stroke(number) }, title);
    const dot = of.length > 1 ? [] : [s("circle", { cx: x.place(last[0]), cy: y.place(last[1]), r: 3, fill: COLORS[number % COLORS.length] })];
    return [path, ...dot, s("text", { x: x.place(last[0]) + 5, y: y.place(last[1]) + 4 }, `${number + 1}`)];
  }).flat();
  const label = s("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, isLog ? "updates (logarithmic scale of values)" : "updates");
  return s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img" }, ...grid, ...lines, label);
}

for (const place of document.querySelectorAll("[data-run]")) place.prepend(swatch(Number(place.dataset.run)), `${Number(place.dataset.run) + 1} `);
Object.values(JSON.parse(byId("charts").textContent)).forEach((chart, place) => {
  const figure = document.querySelectorAll("figure")[place], picture = draw(chart);
  picture.setAttribute("aria-label", figure.querySelector("figcaption").textContent);
  figure.querySelector("figcaption").after(picture);
});
