// The visible texts of a page whose contrast to what is behind them is below 4.5; by WCAG 2.
const light = (color) => color.match(/[\d.]+/g).slice(0, 3).map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
  .reduce((sum, x, place) => sum + x * [0.2126, 0.7152, 0.0722][place], 0.05);
function behind(node) {
  const color = getComputedStyle(node).backgroundColor;
  return /, 0\)$/.test(color) ? behind(node.parentElement) : color;
}
const hasText = (node) => [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
const nodes = [...document.querySelectorAll("body *:not(script, svg *, .skip)")].filter((node) => node.checkVisibility() && hasText(node));
return nodes.filter((node) => {
  const pair = [light(getComputedStyle(node).color), light(behind(node))];
  return Math.max(...pair) / Math.min(...pair) < 4.5;
}).map((node) => node.outerHTML);
