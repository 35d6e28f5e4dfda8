// The panels of a sentence: texts and verdict, n-best list, step, members, attention.
const panel = (title, note, ...content) => h("section", { "aria-label": title }, h("h2", {}, title, note && h("small", {}, note)), ...content);
const outputOf = (sentence, state) => (state.output === "ref" && sentence.reference) || sentence.hypotheses[state.output] || sentence.best;
const nameOf = (state) => (state.output === "ref" ? "the reference" : `hypothesis ${Number(state.output) + 1}`);
const quoted = (sentence, tokens) => "“" + sentence.pieces_(tokens).join("").replace(/^·(?=.)/, "").replace(/·(?=.)/g, " ") + "”";

function texts(sentence) {
  const rows = [["source", sentence.source], ["output", sentence.best ? sentence.best.text : "(none)"]];
  if (sentence.reference) rows.push(["reference", sentence.reference.text]);
  if (sentence.notes) rows.push(["notes", sentence.notes.join("; ")]);
  return h("section", { "aria-label": "Texts" }, h("dl", { class: "text" }, rows.map(([name, text]) => [h("dt", {}, name), h("dd", { dir: "auto" }, text)])), verdict(sentence));
}

// What became of the reference: when it was dropped, by how much, and by which candidates.
function verdict(sentence) {
  const fate = sentence.fate;
  if (!fate) return null;
  const { step } = fate, lines = [], prefix = quoted(sentence, sentence.reference.tokens.slice(0, step + 1));
  if (fate.fate === "found") lines.push(`The reference is hypothesis ${fate.rank + 1} of the n-best list.`);
  else if (fate.fate === "replaced") lines.push(`The reference finished at step ${step + 1} with ${nats(fate.score)}, but better hypotheses took its place.`);
  else if (fate.fate === "sentence_done") lines.push(`The reference was still in the beam (${prefix}, ${nats(fate.score)}) when the sentence was done at step ${step + 1}.`);
  else if (fate.fate === "forbidden") lines.push(`The reference was dropped at step ${step + 1}: ${fate.by || "a rule"} forbids ${prefix}.`);
  else {
    const what = fate.fate === "ended_too_low" ? "ended at too low a rank" : "fell out of the beam";
    const gap = fate.worst < 0 || fate.score === null ? fate.gap : sentence.steps[step].scores[fate.worst] - fate.score;
    const by = gap === null || gap === undefined ? "" : `, ${difference(gap)} nats below the last candidate that survived`;
    const last = fate.worst < 0 ? "" : ` That was ${quoted(sentence, sentence.tokens(step, fate.worst))}${fate.score === null ? "" : ` (${nats(sentence.steps[step].scores[fate.worst])} against ${nats(fate.score)})`}.`;
    lines.push(`The reference ${what} at step ${step + 1} as ${prefix}${by}.${last}`);
  }
  const error = sentence.error;
  if (!Number.isNaN(error)) {
    const [reference, output] = [exact(sentence.reference.score), exact(sentence.best.score)], many = trace.header.models.length > 1;
    const [scoring, models] = many ? ["The models score", "the models"] : ["The model scores", "the model"];
    lines.push(error > 1e-4 ? `${scoring} the reference higher than the output (${reference} against ${output}): this is an error of the search, not of ${models}.`
      : error < -1e-4 ? `${scoring} the output higher than the reference (${output} against ${reference})` + (fate.fate === "found" ? "." : ": a larger beam would not choose the reference.")
        : `The reference and the output have the same score (${exact(sentence.best.score)}).`);
  }
  return h("div", { class: classes("verdict", fate.fate === "found" && "found"), id: "verdict" }, lines.map((line) => h("p", {}, line)));
}

function tokenCells(sentence, output, state, go) {
  return output.tokens.map((token, step) => tip(h("span", { class: classes("token", step === state.step && "now"), style: output.scores.length ? surprise(output.scores[step]) : false, onclick: (event) => { event.stopPropagation(); go({ step: Math.min(step, sentence.steps.length - 1), rank: null }); } },
    shown(sentence.pieces[token])), () => shown(sentence.pieces[token]) + (output.scores.length ? `  ${percent(output.scores[step])}  (${exact(output.scores[step])} nats)` : "")));
}

// The selected hypothesis at the selected step in words, for those who cannot point at a token.
function tokenLine(sentence, state) {
  const output = outputOf(sentence, state), { step } = state;
  if (!output || !output.scores.length) return null;
  const name = nameOf(state);
  if (step >= output.tokens.length) return h("p", { id: "token" }, `${name} has ended before step ${step + 1}`);
  const sum = output.scores.slice(0, step + 1).reduce((total, score) => total + (score ?? -Infinity), 0);
  return h("p", { id: "token" }, `${name}, step ${step + 1}: `, h("span", { class: "piece" }, shown(sentence.pieces[output.tokens[step]])), ` ${percent(output.scores[step])} (${exact(output.scores[step])} nats); sum so far ${isFinite(sum) ? exact(sum) : "−∞"}`);
}

function nbest(sentence, state, go) {
  const row = (output, name, key, kind, extra) => h("tr", { class: classes("pick", kind), tabindex: 0, "aria-selected": String(state.output === key), "data-output": key, onclick: () => go({ output: key }), onkeydown: (event) => { if (event.key === "Enter") go({ output: key }); } },
    h("td", { class: "number" }, name), h("td", { class: "number score" }, output.scores.length ? exact(output.score) : ""), h("td", {}, tokenCells(sentence, output, state, go), extra));
  const rows = sentence.hypotheses.map((output, place) => row(output, `${place + 1}`, place, ""));
  if (sentence.reference) rows.push(row(sentence.reference, "ref", "ref", "reference", sentence.missed && h("span", { class: "badge" }, `▲ scored ${difference(sentence.error)} higher than the output`)));
  return panel("Hypotheses", "a selected row shows its path in the beam, its members and, if recorded, its attention; the score ranks hypotheses", rows.length ? h("table", { id: "nbest" }, h("thead", {}, h("tr", {}, h("th", { class: "number" }, "rank"), h("th", { class: "number" }, "score"), h("th", {}, "tokens"))), h("tbody", {}, rows))
    : h("p", { class: "empty" }, "There is no hypothesis."), tokenLine(sentence, state), h("p", { class: "legend" }, h("span", {}, "probable", h("span", { class: "scale" }), "improbable (4 nats and more)"), h("span", {}, "· is a space")));
}

function beamPanel(sentence, state, go) {
  if (!sentence.steps.length) return panel("Beam", "", h("p", { class: "empty" }, "No step was recorded."));
  const chart = margin(sentence);
  const toggle = h("label", {}, h("input", { type: "checkbox", id: "dropped", checked: state.dropped, onchange: (event) => go({ dropped: event.target.checked }) }), " dropped candidates (d)");
  return panel("Beam", "a row for each rank, a column for each step", h("div", { class: "scroll", id: "scroll" }, tree(sentence, state, go), chart),
  // not inside the element above, which would scroll the text out of sight
  chart && h("p", { class: "legend" }, "The curve: nats below the best candidate of the step, of the surviving beams (band) and of the reference (line; dashed after it was dropped, by the models' own scores)."),
  treeLegend(sentence), h("p", { class: "legend" }, toggle));
}

function stepPanel(sentence, state, go) {
  const number = state.step, step = sentence.steps[number];
  if (!step) return null;
  const members = step.members ? step.members.length : 0;
  const names = memberNames(members);
  const rows = [...step.outcomes].map((letter, rank) => {
    if (letter === "I") return null;
    const tokens = sentence.pieces_(sentence.tokens(number, rank)), newest = tokens.pop(), gain = sentence.gain(number, rank);
    return h("tr", { class: classes("pick", !sentence.survives(number, rank) && "gone", isReference(sentence, number, rank) && "reference"), tabindex: 0, "aria-selected": String(state.rank === rank), "data-rank": rank,
      onclick: () => go({ rank }), onkeydown: (event) => { if (event.key === "Enter") go({ rank }); } },
    h("td", { class: "number" }, `${rank + 1}`), h("td", {}, h("span", { class: "piece" }, h("span", { class: "before" }, (tokens.length > 5 ? "…" : "") + tokens.slice(-5).join("")), h("b", {}, newest)), isReference(sentence, number, rank) && h("span", { class: "badge" }, "reference")),
    h("td", { class: "number" }, measured(gain)), h("td", { class: "number score" }, exact(step.scores[rank])),
    Array.from({ length: members }, (_, m) => h("td", { class: "number" }, measured(step.members[m][rank]))), h("td", {}, sentence.reason(number, rank)));
  });
  const forbidden = (step.forbidden || []).map(([beam, token, lprob, by]) => {
    const before = number ? sentence.pieces_(sentence.tokens(number - 1, sentence.steps[number - 1].next[beam])) : [];
    return h("tr", { class: "gone forbidden" }, h("td", { class: "number" }, "✕"), h("td", {}, h("span", { class: "piece" }, h("span", { class: "before" }, (before.length > 5 ? "…" : "") + before.slice(-5).join("")), h("s", {}, shown(sentence.pieces[token])))),
      h("td", { class: "number" }, measured(lprob)), h("td", { class: "number" }, exact(sentence.before(number, beam) + lprob)), Array.from({ length: members }, () => h("td", {})), h("td", {}, `forbidden by ${by}; it would have survived`));
  });
  rows.push(lostReference(sentence, number, members));
  return panel(`Step ${number + 1} of ${sentence.steps.length}`, "← and → change the step; a score is the sum of the token scores so far, with what the search adds to it", h("table", { id: "step" }, h("thead", {}, h("tr", {}, h("th", { class: "number" }, "rank"), h("th", {}, "candidate"), h("th", { class: "number" }, "token"), h("th", { class: "number" }, "score so far"), names.map((name) => h("th", { class: "number" }, name)), h("th", {}, "what happened"))), h("tbody", {}, rows, forbidden)));
}

// The reference, at a step at which it is no candidate.
function lostReference(sentence, number, members) {
  const { reference, fate } = sentence;
  if (!reference || !fate || fate.ranks[number] >= 0 || number >= reference.tokens.length) return null;
  const before = sentence.pieces_(reference.tokens.slice(0, number)), scores = sentence.referenceScores(), own = reference.scores[number];
  return h("tr", { class: "gone reference lost" }, h("td", { class: "number" }, "ref"), h("td", {}, h("span", { class: "piece" }, h("span", { class: "before" }, (before.length > 5 ? "…" : "") + before.slice(-5).join("")), h("b", {}, shown(sentence.pieces[reference.tokens[number]])))),
    h("td", { class: "number" }, own === undefined ? "" : measured(own)), h("td", { class: "number" }, number < scores.length ? exact(scores[number]) : ""), Array.from({ length: members }, (_, m) => h("td", { class: "number" }, reference.members ? measured(reference.members[m][number]) : "")),
    h("td", {}, number > fate.step ? `the reference, which was dropped at step ${fate.step + 1}` : "the reference, which is not among the candidates"));
}

const memberNames = (count) => Array.from({ length: count }, (_, m) => (trace.header.models[m] || "").split("/").filter(Boolean).pop() || `member ${m + 1}`);

// The members side by side at each token, with their largest disagreement.
function membersPanel(sentence, state, go) {
  const output = outputOf(sentence, state), scores = output && sentence.memberScores(output);
  if (!scores || scores.length < 2) return null;
  const names = memberNames(scores.length);
  const { spread, most } = sentence.disagreement(output), scale = Math.max(2, most);
  const rows = scores[0].map((_, step) => h("tr", { class: "pick", "aria-selected": String(step === state.step), onclick: () => go({ step: Math.min(step, sentence.steps.length - 1), rank: null }) },
    h("td", { class: "number" }, `${step + 1}`), h("td", {}, h("span", { class: "piece" }, shown(sentence.pieces[output.tokens[step]]))), scores.map((own) => h("td", { class: "number" }, measured(own[step]))),
    h("td", { class: "number" }, h("span", { class: "bar" }, h("i", { style: `width:${(100 * spread[step]) / scale}%;background:var(--alert)` })), nats(spread[step])), h("td", {}, spread[step] === most && most > 0.1 ? "▲ they disagree most here" : "")));
  return panel("Members", `probability that each gives to the tokens of ${nameOf(state)}`,
    h("table", { id: "members" }, h("thead", {}, h("tr", {}, h("th", { class: "number" }, "step"), h("th", {}, "token"), names.map((name) => h("th", { class: "number" }, name)), h("th", { class: "number" }, "disagreement (nats)"), h("th", {}))), h("tbody", {}, rows)));
}

function attentionPanel(sentence, state) {
  const output = outputOf(sentence, state);
  if (!sentence.best || !sentence.best.attention) return null;
  if (!output.attention) return panel("Attention", "", h("p", { class: "empty" }, `The trace has no attention of ${nameOf(state)}.`));
  const pieces = sentence.source_pieces.map(shown);
  const cell = (weight, row, column) => tip(h("td", { style: `background:color-mix(in srgb, var(--heat) ${weight}%, transparent);color:${weight > 62 ? "var(--panel)" : "var(--ink)"}` }, weight >= 10 ? `${weight}` : ""), () => `${shown(sentence.pieces[output.tokens[row]])} attends to ${pieces[column]} with ${weight}%`);
  return panel("Attention", `percent of its attention that each token of ${nameOf(state)} pays to each source token`, h("table", { class: "heat", id: "attention" }, h("thead", {}, h("tr", {}, h("th", {}), pieces.map((piece) => h("th", {}, piece)))),
    h("tbody", {}, output.attention.map((weights, row) => h("tr", {}, h("th", {}, shown(sentence.pieces[output.tokens[row]])), weights.map((weight, column) => cell(Math.round(100 * weight), row, column)))))));
}
