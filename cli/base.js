const byId = (id) => document.getElementById(id);

function setTheme(name, keep) {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = name === "dark" ? "Light" : "Dark";
  try { if (keep) localStorage.setItem("seqgen-theme", name); } catch { /* the browser forbids storage for files */ }
}
const otherTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true);

function firstTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let kept = null;
  try { kept = localStorage.getItem("seqgen-theme"); } catch { /* as above */ }
  setTheme(kept || (dark.matches ? "dark" : "light"), false);
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light", false));
  byId("theme").addEventListener("click", otherTheme);
}
firstTheme();

// The value by which a cell sorts: a number, also in brackets, or text; null for a cell without a value.
function valueOf(cell) {
  const text = cell.dataset.value ?? cell.textContent.trim(), number = Number(text.replace(/^\[(.*)\]$/, "$1"));
  return text === "" || text === "-" ? null : Number.isNaN(number) ? text : number;
}
const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));

// Sorts by a column: rows without a value come last, equal ones keep their first order.
function sortBy(table, header, ascending) {
  const body = table.tBodies[0], sign = ascending ? 1 : -1;
  const keyed = [...body.rows].map((row) => ({ row, value: valueOf(row.cells[header.cellIndex]) }));
  keyed.sort((a, b) => (a.value === null) - (b.value === null) || (a.value === null ? 0 : sign * order(a.value, b.value)) || a.row.dataset.place - b.row.dataset.place);
  body.append(...keyed.map((each) => each.row));
  for (const other of header.parentElement.cells) if (other.ariaSort) other.ariaSort = "none";
  header.ariaSort = ascending ? "ascending" : "descending";
}

// A second press on a header turns the order around; a header with data-first="descending" begins with the largest.
for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tBodies[0].rows].forEach((row, place) => { row.dataset.place = place; });
  for (const button of table.querySelectorAll("thead button")) {
    const header = button.parentElement, up = header.dataset.first !== "descending";
    button.addEventListener("click", () => sortBy(table, header, header.ariaSort === "none" ? up : header.ariaSort !== "ascending"));
  }
}
