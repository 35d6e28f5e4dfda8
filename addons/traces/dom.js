// Makes elements. Text is always set as text, never as HTML: a trace can contain any characters.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const classes = (...names) => names.filter(Boolean).join(" ");
const nats = (value) => (value === null || value === undefined ? "−∞" : value.toFixed(2).replace("-", "−"));
// A difference: with two decimals more where two would show 0.00.
const difference = (value) => (Math.abs(value) < 0.01 ? exact(value) : nats(value));
const exact = (value) => (value === null || value === undefined ? "−∞" : value.toFixed(4).replace("-", "−"));
const probability = (lprob) => (lprob === null ? 0 : Math.exp(lprob));
function percent(lprob) {
  const p = 100 * probability(lprob);
  return p >= 99.95 ? "100%" : p >= 10 ? p.toFixed(0) + "%" : p >= 0.1 ? p.toFixed(1) + "%" : p > 0 ? "<0.1%" : "0%";
}
const bar = (lprob) => h("span", { class: "bar" }, h("i", { style: `width:${Math.min(100, 100 * probability(lprob))}%` }));
const measured = (lprob) => [bar(lprob), h("span", { class: "percent" }, percent(lprob))];
// the more surprising a token, the stronger its colour: 0 nats is clear, 4 nats and more are full
const surprise = (lprob) => `background:color-mix(in srgb, var(--surprise) ${(75 * Math.min(1, -(lprob === null ? -9 : Math.min(0, lprob)) / 4)).toFixed(1)}%, transparent)`;
const shown = (piece) => piece.replace(/\u2581/g, "\u00b7").replace(/\n/g, "\u21b5") || "\u2205";

function tip(node, text) {
  const box = byId("tip");
  node.addEventListener("pointerenter", (event) => {
    box.textContent = typeof text === "function" ? text() : text;
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - width - 8)) + "px";
    box.style.top = (event.clientY + 16 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 16) + "px";
  });
  node.addEventListener("pointerleave", () => { box.hidden = true; });
  return node;
}
