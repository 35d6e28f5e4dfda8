// The page: which sentence and step are shown, the list of sentences, keys and links.
let trace = null;
let listed = [];
const state = { sentence: 0, step: 0, rank: null, output: 0, dropped: true };

const FILTERS = {
  all: ["all sentences", () => true],
  error: ["▲ the reference is scored higher than the output", (sentence) => sentence.missed],
  lost: ["✕ the reference was dropped", (sentence) => sentence.fate && sentence.fate.fate !== "found"],
  found: ["● the reference was found", (sentence) => sentence.fate && sentence.fate.fate === "found"],
  forbidden: ["a rule forbade a token that would have survived", (sentence) => sentence.steps.some((step) => step.forbidden)],
};

// Orders of the list: a text, whether it is offered, and the value by which it sorts, the largest first.
const ORDERS = {
  file: ["in the order of the file", () => true, (sentence) => -sentence.id],
  disagreement: ["members disagree most on a token of the output", (sentence) => sentence.disagreement(sentence.best) !== null, (sentence) => (sentence.disagreement(sentence.best) || { most: -1 }).most],
  error: ["largest error of the search first", (sentence) => !Number.isNaN(sentence.error), (sentence) => (sentence.missed ? sentence.error : -1)],
  unlikely: ["improbable outputs first", (sentence) => Boolean(sentence.best), (sentence) => (sentence.best ? -sentence.best.score : -1)],
};

const KEYS = [["↑ ↓ or k j", "previous, next sentence"], ["← → or h l", "previous, next step"], ["Home End", "first, last step"], ["r", "the step at which the reference was dropped"],
  ["n", "next sentence whose reference is scored higher than the output"], ["d", "show or hide dropped candidates"], ["1 … 9, 0", "select a hypothesis; 0 selects the reference"], ["/", "search"], ["t", "dark or light"], ["?", "these keys"]];

function go(change) {
  const moved = change.sentence !== undefined && change.sentence !== state.sentence;
  if (moved) Object.assign(state, { step: startOf(trace.sentences[change.sentence]), rank: null, output: 0 });
  Object.assign(state, change);
  const last = Math.max(0, current().steps.length - 1);
  state.step = Math.max(0, Math.min(last, state.step));
  if (change.step !== undefined && change.rank === undefined) state.rank = null;
  history[moved ? "pushState" : "replaceState"](null, "", `#sentence=${current().id + 1}&step=${state.step + 1}`);
  say("");
  render(moved);
}

const current = () => trace.sentences[state.sentence];
const focusMain = () => byId("main").focus({ preventScroll: true }); // so that the keys move through the trace
const say = (text) => { byId("message").textContent = text; };

// A sentence opens at the step that the list is about; otherwise where its reference was dropped.
function startOf(sentence) {
  if (byId("filter").value === "forbidden") return Math.max(0, sentence.steps.findIndex((step) => step.forbidden));
  if (byId("order").value === "disagreement" && sentence.disagreement(sentence.best)) return sentence.disagreement(sentence.best).step;
  return sentence.fate && sentence.fate.fate !== "found" ? sentence.fate.step : 0;
}

function render(moved) {
  const sentence = current(), main = byId("main"), focused = document.activeElement, key = focused && focused.dataset ? { ...focused.dataset } : {};
  const offset = byId("scroll") && !moved ? byId("scroll").scrollLeft : 0;
  byId("tip").hidden = true;
  const top = h("div", { class: "top" }, h("h2", {}, `Sentence ${sentence.id + 1}`), h("button", { type: "button", id: "previous", onclick: () => move(-1) }, "↑ previous"), h("button", { type: "button", id: "next", onclick: () => move(1) }, "↓ next"));
  main.replaceChildren(...[top, texts(sentence), nbest(sentence, state, go), beamPanel(sentence, state, go), stepPanel(sentence, state, go), membersPanel(sentence, state, go), attentionPanel(sentence, state)].filter(Boolean));
  const scroll = byId("scroll");
  if (scroll) {
    scroll.scrollLeft = offset;
    const left = LEFT + 26 + DX * state.step;
    if (left < scroll.scrollLeft || left + DX > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = left - scroll.clientWidth / 2;
  }
  for (const name of ["rank", "output"]) if (key[name] !== undefined) main.querySelector(`[data-${name}="${key[name]}"]`)?.focus({ preventScroll: true });
  if (moved) main.scrollTop = 0;
  for (const button of byId("list").querySelectorAll("button")) {
    const now = Number(button.dataset.index) === state.sentence;
    if (now) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
    if (now) button.scrollIntoView({ block: "nearest" });
  }
}

function fillList() {
  const wanted = byId("search").value.trim().toLowerCase(), [, keep] = FILTERS[byId("filter").value] || FILTERS.all;
  listed = trace.sentences.map((_, index) => index).filter((index) => {
    const sentence = trace.sentences[index];
    const all = [sentence.source, ...sentence.hypotheses.map((x) => x.text), sentence.reference ? sentence.reference.text : ""].join("\n").toLowerCase();
    return keep(sentence) && (!wanted || String(sentence.id + 1) === wanted || all.includes(wanted));
  });
  const [, , value] = ORDERS[byId("order").value] || ORDERS.file;
  listed.sort((a, b) => value(trace.sentences[b]) - value(trace.sentences[a]));
  byId("list").replaceChildren(...listed.map((index) => {
    const sentence = trace.sentences[index];
    return h("li", {}, h("button", { type: "button", tabindex: -1, "data-index": index, onclick: () => go({ sentence: index }) }, h("span", { class: "n" }, `${sentence.id + 1}`), h("span", { class: "s" }, sentence.source || "(empty)"), h("span", { class: classes("m", sentence.missed && "error") }, sentence.mark())));
  }));
  byId("count").textContent = `${listed.length} of ${trace.sentences.length} sentences` + (trace.complete ? "" : " (the trace has only the first lines of the decode)");
}

function move(by) {
  const place = listed.indexOf(state.sentence);
  const next = place < 0 ? (by > 0 ? listed[0] : listed.at(-1)) : listed[place + by];
  if (next !== undefined) go({ sentence: next });
}

function nextError() {
  const count = trace.sentences.length;
  for (let i = 1; i < count; i++) if (trace.sentences[(state.sentence + i) % count].missed) return go({ sentence: (state.sentence + i) % count });
  say(`No ${current().missed ? "other " : ""}sentence has a reference that is scored higher than the output.`);
}

function select(output) { if (output === "ref" ? current().reference : current().hypotheses[output]) go({ output }); }

const ACTIONS = {
  ArrowUp: () => move(-1), k: () => move(-1), ArrowDown: () => move(1), j: () => move(1),
  ArrowLeft: () => go({ step: state.step - 1 }), h: () => go({ step: state.step - 1 }), ArrowRight: () => go({ step: state.step + 1 }), l: () => go({ step: state.step + 1 }),
  Home: () => go({ step: 0 }), End: () => go({ step: Infinity }), r: () => current().fate && go({ step: current().fate.step }), n: nextError,
  d: () => go({ dropped: !state.dropped }), "/": () => byId("search").focus(), t: otherTheme, "?": () => byId("keys").showModal(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  if (event.target.matches("input[type=search], select")) {
    if (event.key === "Escape" || (event.key === "Enter" && listed.length)) { event.target.blur(); if (event.key === "Enter" && !listed.includes(state.sentence)) go({ sentence: listed[0] }); }
    return;
  }
  const action = /^[1-9]$/.test(event.key) ? () => select(Number(event.key) - 1) : event.key === "0" ? () => select("ref") : ACTIONS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

// #sentence=3&step=5 counts from 1, as line numbers do.
function followLink() {
  const link = new URLSearchParams(location.hash.slice(1)), number = Number(link.get("sentence")) - 1, step = Number(link.get("step")) - 1;
  const index = trace.sentences.findIndex((sentence) => sentence.id === number);
  if (index >= 0) state.sentence = index;
  Object.assign(state, { step: step >= 0 ? step : startOf(current()), rank: null, output: 0 });
  go({});
  if (index < 0 && link.has("sentence")) say(`The trace has no sentence ${link.get("sentence")}; this is sentence ${current().id + 1}.`);
}

function about() {
  const { header } = trace;
  const beams = header.beam > 1 ? `, ${header.beam} beams` : "";
  byId("about").textContent = `${header.search}${beams}, ${header.rules}’s rules; ${header.models.join(" + ")}`;
}

async function start() {
  byId("keys").append(h("h2", {}, "Keys"), h("table", {}, KEYS.map(([key, text]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, text)))), h("form", { method: "dialog" }, h("button", {}, "Close")));
  try {
    trace = await readTrace();
  } catch (error) {
    byId("loading").className = "failed";
    byId("loading").textContent = `The page cannot read its trace: ${error.message}. It needs a browser from 2024 or later.`;
    return;
  }
  about();
  if (!trace.sentences.length) { byId("loading").textContent = "The trace has no sentences."; return; }
  for (const [name, [text]] of Object.entries(FILTERS)) byId("filter").append(h("option", { value: name }, text));
  for (const [name, [text, offered]] of Object.entries(ORDERS)) if (trace.sentences.some(offered)) byId("order").append(h("option", { value: name }, text));
  byId("search").addEventListener("input", fillList);
  byId("filter").addEventListener("change", () => { fillList(); if (listed.length && !listed.includes(state.sentence)) go({ sentence: listed[0] }); focusMain(); });
  byId("order").addEventListener("change", () => { fillList(); if (listed.length) go({ sentence: listed[0] }); focusMain(); });
  byId("help").addEventListener("click", ACTIONS["?"]);
  addEventListener("keydown", onKey);
  addEventListener("hashchange", followLink);
  fillList();
  followLink();
  focusMain();
  document.documentElement.dataset.ready = "true";
  window.readyAt = performance.now();
}
start();
