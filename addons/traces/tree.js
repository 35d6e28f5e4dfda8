// The tree of the beam: a column for each step, a row for each rank; lines are as thick as candidates are probable.
const DX = 104, DY = 25, TOP = 30, LEFT = 26;

function tree(sentence, state, go) {
  const steps = sentence.steps, alive = sentence.alive();
  const rows = steps.map((step, number) => [...step.outcomes].map((_, rank) => rank)
    .filter((rank) => step.outcomes[rank] !== "I" && (state.dropped || sentence.survives(number, rank) || isReference(sentence, number, rank))));
  const place = rows.map((ranks) => new Map(ranks.map((rank, row) => [rank, row])));
  const height = TOP + DY * Math.max(1, ...rows.map((ranks) => ranks.length)) + 12;
  const width = LEFT + DX * steps.length + 60;
  const at = (step, rank) => [LEFT + DX * (step + 1) - 58, TOP + 14 + DY * place[step].get(rank)];
  const root = [LEFT - 12, TOP + 14];
  const selected = state.rank !== null ? sentence.path(state.step, state.rank) : state.output ? pathOf(sentence, outputOf(sentence, state)) : [];
  const chosen = new Set(selected.map((pair) => pair.join(":")));
  const columns = [], edges = [], nodes = [];
  steps.forEach((step, number) => {
    const x = LEFT + DX * number;
    columns.push(s("rect", { class: classes("column", number === state.step && "now"), x: x + 26, y: 0, width: DX, height, onclick: () => go({ step: number, rank: null }) }),
      s("text", { class: "small", x: x + 46, y: 15 }, `${number + 1}`));
    for (const rank of rows[number]) {
      const parent = sentence.parent(number, rank), key = `${number}:${rank}`;
      const from = number && place[number - 1].has(parent) ? at(number - 1, parent) : number ? null : root;
      const [x1, y1] = at(number, rank);
      const led = alive.get(key), onReference = isReference(sentence, number, rank);
      const kind = classes(led === 0 ? "best" : led !== undefined ? "alive" : "dead", onReference && "reference", chosen.has(key) && "marked");
      if (from) {
        const [x0, y0] = from, label = number ? labelWidth(sentence, number - 1, parent) : 6, bend = x0 + label;
        const d = `M${bend},${y0}C${bend + 22},${y0} ${x1 - 26},${y1} ${x1 - 6},${y1}`;
        const thickness = 1 + 11 * sentence.share(number, rank);
        edges.push(s("path", { class: classes("edge", led === 0 ? "best" : led !== undefined && "alive", chosen.has(key) && "marked"), d, "stroke-width": thickness.toFixed(1) }));
        if (onReference) edges.push(s("path", { class: "edge reference", d, "stroke-width": 2 }));
      }
      const group = s("g", { class: classes("candidate", kind), "data-at": key, onclick: () => go({ step: number, rank }) },
        shape(step.outcomes[rank], x1, y1, classes("node", led === 0 ? "best" : led !== undefined && "alive", !sentence.survives(number, rank) && "open", onReference && "reference")),
        s("text", { x: x1 + 9, y: y1 + 4 }, clipped(shown(sentence.pieces[step.tokens[rank]]))));
      nodes.push(tip(group, () => `${sentence.pieces_(sentence.tokens(number, rank)).join("")}\nscore ${exact(step.scores[rank])}, token ${percent(sentence.gain(number, rank))}\n${sentence.reason(number, rank)}`));
    }
    const fate = sentence.fate;
    if (fate && fate.step === number && fate.fate !== "found") {
      const dropped = rows[number].some((rank) => isReference(sentence, number, rank));
      if (!dropped) nodes.push(s("g", { class: "candidate reference" }, cross(LEFT + DX * (number + 1) - 58, height - 8, "node reference"),
        s("text", { x: LEFT + DX * (number + 1) - 49, y: height - 4 }, clipped(shown(sentence.pieces[sentence.reference.tokens[number]])))));
    }
  });
  return s("svg", { id: "tree", width, height, role: "img", "aria-label": `Tree of the beam, ${steps.length} steps` }, columns, edges, nodes);
}

// The candidates along an output, as far as it was followed.
const pathOf = (sentence, output) => sentence.ranksOf(output).map((rank, step) => [step, rank]);
const clipped = (text) => (text.length > 10 ? text.slice(0, 9) + "…" : text);
const labelWidth = (sentence, step, rank) => 12 + 7.3 * clipped(shown(sentence.pieces[sentence.steps[step].tokens[rank]])).length;
const isReference = (sentence, step, rank) => Boolean(sentence.fate && sentence.fate.ranks[step] === rank);
const cross = (x, y, kind) => s("path", { class: kind, d: `M${x - 4},${y - 4}l8,8m0,-8l-8,8` });

// Shapes and not only colours tell outcomes apart.
function shape(letter, x, y, kind) {
  if (letter === "F") return s("rect", { class: kind, x: x - 5, y: y - 5, width: 10, height: 10, rx: 1 });
  if (letter === "E") return s("rect", { class: kind, x: x - 4, y: y - 4, width: 8, height: 8 });
  return s("circle", { class: kind, cx: x, cy: y, r: letter === "C" ? 4.5 : 3.5 });
}

function treeLegend(sentence) {
  const sample = (letter, kind, text) => h("span", {}, s("svg", { width: 14, height: 14 }, shape(letter, 7, 7, classes("node", kind))), text);
  return h("p", { class: "legend" }, sample("C", "best", "on the path of the output"), sample("C", "alive", "leads to the n-best list"), sample("C", "", "survived this step, but not to the end"),
    sample("F", "alive", "finished"), sample("B", "open", "dropped: below the beam"), sample("E", "open", "dropped: ended at too low a rank"),
    sentence.reference && sample("C", "open reference", "the reference"), h("span", {}, s("svg", { width: 22, height: 8 }, s("path", { class: "edge marked", d: "M0,4h22", "stroke-width": 3 })), "the selected hypothesis or candidate"), h("span", {}, "thick: probable among the candidates of the step"));
}

// Below the tree: how far the surviving beams and the reference are below the best candidate of each step.
function margin(sentence) {
  if (!sentence.reference || !sentence.steps.length || !sentence.referenceScores().length) return null;
  const height = 96, reference = sentence.referenceScores(), count = sentence.steps.length;
  const x = (step) => LEFT + DX * (step + 1) - 58;
  const below = (step, score) => sentence.leading(step) - score;
  const worst = sentence.steps.map((_, step) => (isFinite(sentence.worst(step)) ? below(step, sentence.worst(step)) : 0));
  const gaps = reference.slice(0, count).map((score, step) => below(step, score));
  const low = Math.min(0, ...gaps), high = Math.max(1, ...worst, ...gaps.filter(isFinite));
  const y = (gap) => 8 + ((height - 26) * (gap - low)) / (high - low);
  const line = (values, start = 0) => values.map((value, step) => `${step ? "L" : "M"}${x(step + start)},${y(value)}`).join("");
  const last = sentence.fate ? sentence.fate.step : -1;
  const band = line(worst.map(() => 0)) + worst.map((value, step) => `L${x(count - 1 - step)},${y(worst[count - 1 - step])}`).join("") + "Z";
  return s("svg", { id: "margin", width: LEFT + DX * count + 60, height, role: "img", "aria-label": "Distance of the reference and of the beam from the best candidate" },
    s("path", { class: "band", d: band }), s("line", { class: "axis", x1: x(0), x2: x(count - 1), y1: y(0), y2: y(0) }),
    s("path", { class: "chart-reference", d: line(gaps.slice(0, last + 1)) }),
    last >= 0 && gaps.length > last + 1 && s("path", { class: "chart-reference out", d: line(gaps.slice(last), last) }),
    gaps.map((gap, step) => s("circle", { class: "mark", cx: x(step), cy: y(gap), r: step === last ? 5 : 2.5 })),
    gaps.map((gap, step) => s("text", { class: "small", x: x(step) + 7, y: Math.min(height - 4, y(gap) + 12) }, nats(gap))));
}
