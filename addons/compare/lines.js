// A table of lines: search and filters, words that differ, scores by a metric, edits and their export.
const table = byId("lines"), rows = [...table.tBodies[0].rows];
const segmenter = new Intl.Segmenter(undefined, { granularity: "word" });

// The words and other signs of a text, each with the blanks before it.
function wordsOf(text) {
  const words = [];
  let before = "";
  for (const { segment } of segmenter.segment(text)) {
    if (segment.trim() === "") before += segment;
    else { words.push({ before, word: segment }); before = ""; }
  }
  if (before) words.push({ before, word: "" });
  return words;
}

// The positions, in each of two lists of words, of a longest common subsequence; in very long ones of its ends only.
function common(a, b) {
  const kept = [new Set(), new Set()], keep = (i, j) => { kept[0].add(i); kept[1].add(j); };
  const same = (i, j) => a[i].word === b[j].word;
  let start = 0, m = a.length, n = b.length;
  for (; start < m && start < n && same(start, start); start++) keep(start, start);
  while (m > start && n > start && same(m - 1, n - 1)) keep(--m, --n);
  if ((m - start) * (n - start) > 4e6) return kept;
  const width = n + 1, lengths = new Uint16Array((m + 1) * width);
  for (let i = m - 1; i >= start; i--) for (let j = n - 1; j >= start; j--) lengths[i * width + j] = same(i, j) ? 1 + lengths[(i + 1) * width + j + 1] : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
  for (let i = start, j = start; i < m && j < n;) {
    if (same(i, j)) keep(i++, j++);
    else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i++;
    else j++;
  }
  return kept;
}

// Shows words in a paragraph; neighbours that differ are one element.
function mark(paragraph, words, differs, tag) {
  let last = null;
  paragraph.replaceChildren();
  words.forEach(({ before, word }, place) => {
    if (!differs(place) || !word) { paragraph.append(before + word); last = null; return; }
    if (last) { last.append(before + word); return; }
    last = document.createElement(tag);
    last.append(word);
    paragraph.append(before, last);
  });
}

const pivotOf = () => Number(byId("compared").value);
function compare(row) {
  const paragraphs = [...row.querySelectorAll("[data-words]")], words = paragraphs.map((one) => wordsOf(one.textContent)), pivot = pivotOf();
  if (pivot < 0) { for (const one of paragraphs) one.textContent = one.textContent; return; }
  const known = new Set();
  paragraphs.forEach((one, place) => {
    if (place === pivot) return;
    const [mine, others] = common(words[place], words[pivot]);
    others.forEach((position) => known.add(position));
    mark(one, words[place], (position) => !mine.has(position), "ins");
  });
  mark(paragraphs[pivot], words[pivot], (position) => !known.has(position), "del");
}

// Long tables are fast because words are compared when a row comes into view, except for the first rows.
const AT_ONCE = 50;
const views = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) { views.unobserve(target); compare(target); }
}, { rootMargin: "1000px" });
function refresh(row) {
  const found = [...row.querySelectorAll("[data-words]")].map((one) => one.textContent.trim().replace(/\s+/g, " "));
  row.classList.toggle("differs", pivotOf() >= 0 && found.some((text) => text !== found[0]));
  if (row.dataset.line <= AT_ONCE || row.classList.contains("edited")) { compare(row); return; }
  views.unobserve(row);
  views.observe(row);
}

function compareAll() {
  rows.forEach(refresh);
  const meaning = byId("meaning"), name = byId("compared").selectedOptions[0].textContent;
  if (meaning) { meaning.hidden = pivotOf() < 0; for (const place of meaning.querySelectorAll("b")) place.textContent = name; }
  show();
}

const textOf = (row) => [...row.querySelectorAll(".text p, .notes")].map((cell) => cell.textContent).join("\n").toLowerCase();
function show() {
  const wanted = byId("search").value.trim().toLowerCase(), flag = byId("filter").value;
  for (const row of rows) row.hidden = Boolean((flag && !row.classList.contains(flag)) || (wanted && row.dataset.line !== wanted && !textOf(row).includes(wanted)));
  byId("count").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} lines`;
}

// Shows the scores of each system by a metric, and the differences from the first system.
function chooseMetric(name) {
  const every = JSON.parse(byId("scores").textContent)[name];
  for (const row of rows) {
    const scores = every.map((of) => of[row.dataset.line - 1]);
    for (const cell of row.querySelectorAll("[data-system]")) {
      const value = scores[cell.dataset.system] - (cell.dataset.minus ? scores[cell.dataset.minus] : 0);
      cell.dataset.value = value;
      cell.textContent = (cell.dataset.minus && value > 0 ? "+" : "") + value.toFixed(1).replace("-", "−");
    }
  }
  const sorted = table.querySelector("thead [aria-sort$=ending]");
  if (sorted) sortBy(table, sorted, sorted.ariaSort === "ascending");
}

// Edits: kept by the browser until the page is opened again, if it keeps anything for files.
// The texts are not read from the table, since HTML changes control characters.
const originals = byId("texts") ? JSON.parse(byId("texts").textContent).map((text) => String(text).replaceAll("\n", " ")) : [], texts = [...originals];
const store = `seqgen-edits-${document.title}-${[...originals.join("\n")].reduce((hash, letter) => (31 * hash + letter.codePointAt(0)) | 0, 7)}`;
let unsaved = false;
const placeOf = (row) => row.dataset.line - 1, outputOf = (row) => row.querySelector(".output p");

function change(row, text) {
  const place = placeOf(row), isEdited = text !== originals[place];
  outputOf(row).textContent = texts[place] = text;
  row.classList.toggle("edited", isEdited);
  row.querySelector(".undo").hidden = !isEdited;
  refresh(row);
}

function keep(row, text) {
  change(row, text);
  unsaved = true;
  const edited = [...texts.entries()].filter(([place, each]) => each !== originals[place]);
  try { localStorage.setItem(store, JSON.stringify(edited)); } catch { /* the browser forbids storage for files */ }
}

function edit(row) {
  const button = row.querySelector(".edit"), open = row.querySelector("textarea");
  outputOf(row).hidden = !open;
  button.textContent = open ? "Edit" : "Done";
  if (open) { open.remove(); button.focus(); return; }
  const area = Object.assign(document.createElement("textarea"), { value: texts[placeOf(row)], dir: "auto", ariaLabel: `Output of line ${row.dataset.line}` });
  area.addEventListener("input", () => keep(row, area.value.replace(/\s*[\r\n]+\s*/g, " "))); // a line remains one
  area.addEventListener("keydown", (event) => { if (["Enter", "Escape"].includes(event.key) && !event.isComposing) { event.preventDefault(); edit(row); } });
  outputOf(row).after(area);
  area.focus();
}

function undo(row) {
  if (row.querySelector("textarea")) edit(row);
  keep(row, originals[placeOf(row)]);
  row.querySelector(".edit").focus();
}

function saveText() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([texts.map((text) => `${text}\n`).join("")], { type: "text/plain;charset=utf-8" }));
  link.download = byId("save").dataset.name;
  link.click();
  unsaved = false;
}

function startEditing() {
  for (const row of rows) {
    row.querySelector(".edit").addEventListener("click", () => edit(row));
    row.querySelector(".undo").addEventListener("click", () => undo(row));
  }
  try { for (const [place, text] of JSON.parse(localStorage.getItem(store) ?? "[]")) change(rows[place], text); } catch { /* as above */ }
  byId("save").addEventListener("click", saveText);
  addEventListener("beforeunload", (event) => { if (unsaved) event.preventDefault(); });
}

byId("search").addEventListener("input", show);
byId("filter").addEventListener("change", show);
byId("compared").addEventListener("change", compareAll);
if (byId("save")) startEditing();
if (byId("metric")) { byId("metric").addEventListener("change", () => chooseMetric(byId("metric").value)); chooseMetric(byId("metric").value); }
compareAll();
