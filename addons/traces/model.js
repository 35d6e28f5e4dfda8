// The trace: what addons/traces/page.py has packed, with the questions that the panels ask.
const OUTCOMES = { C: "continues", F: "finished", B: "dropped: below the beam", E: "dropped: it ended at too low a rank", I: "impossible" };

async function readTrace() {
  const text = atob(byId("data").textContent), packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const trace = JSON.parse(await new Response(stream).text());
  trace.sentences = trace.sentences.map((sentence) => new Sentence(sentence));
  return trace;
}

class Sentence {
  constructor(values) { Object.assign(this, values); }

  // The rank, at the step before, of the candidate that a candidate continues; -1 at the first step.
  parent(step, rank) { return step ? this.steps[step - 1].next[this.steps[step].beams[rank]] : -1; }

  path(step, rank) {
    const found = [];
    for (; step >= 0 && rank >= 0; rank = this.parent(step, rank), step--) found.unshift([step, rank]);
    return found;
  }

  pieces_(tokens) { return tokens.map((token) => shown(this.pieces[token])); }
  tokens(step, rank) { return this.path(step, rank).map(([t, r]) => this.steps[t].tokens[r]); }
  // The cumulative score of a beam before a step.
  before(step, beam) { return step ? this.steps[step - 1].scores[this.steps[step - 1].next[beam]] : 0; }
  gain(step, rank) {
    const { scores, beams } = this.steps[step];
    return scores[rank] === null ? null : scores[rank] - this.before(step, beams[rank]);
  }
  survives(step, rank) { return "CF".includes(this.steps[step].outcomes[rank]); }
  survivors(step) { return [...this.steps[step].outcomes].map((_, rank) => rank).filter((rank) => this.survives(step, rank)); }
  worst(step) { return Math.min(...this.survivors(step).map((rank) => this.steps[step].scores[rank])); }
  leading(step) { return Math.max(...this.steps[step].scores.filter((x) => x !== null)); }

  // The share of each candidate in the probability of all candidates of its step.
  share(step, rank) {
    const scores = this.steps[step].scores, top = this.leading(step);
    const total = scores.reduce((sum, x) => sum + (x === null ? 0 : Math.exp(x - top)), 0);
    return scores[rank] === null ? 0 : Math.exp(scores[rank] - top) / total;
  }

  // The ranks, by step, along the tokens of an output, as far as it was followed; and its last step.
  ranksOf(output) {
    let beam = 0;
    const ranks = [];
    for (let step = 0; step < this.steps.length && step < output.tokens.length; step++) {
      const { tokens, beams, outcomes, next } = this.steps[step];
      const rank = [...outcomes].findIndex((letter, r) => letter !== "I" && beams[r] === beam && tokens[r] === output.tokens[step]);
      if (rank < 0) break;
      ranks.push(rank);
      if (outcomes[rank] !== "C" || (beam = next.indexOf(rank)) < 0) break;
    }
    return ranks;
  }

  // Candidates that lead to the n-best list, as "step:rank", with the rank of the best output that they lead to.
  alive() {
    if (!this.alive_) {
      this.alive_ = new Map();
      this.hypotheses.forEach((output, place) => this.ranksOf(output).forEach((rank, step) => {
        if (!this.alive_.has(`${step}:${rank}`)) this.alive_.set(`${step}:${rank}`, place);
      }));
    }
    return this.alive_;
  }

  // The members' scores of the tokens of an output: by member, then by token; undefined if they are not recorded.
  memberScores(output) {
    if (output.members) return output.members;
    const ranks = this.ranksOf(output);
    if (!ranks.length || !this.steps[0].members) return undefined;
    return this.steps[0].members.map((_, member) => ranks.map((rank, step) => this.steps[step].members[member][rank]));
  }

  // The cumulative score of the reference after each step: in the search, then by the models' own scores, if known.
  referenceScores() {
    const { scores: own, search_scores: inSearch = [] } = this.reference, found = inSearch.filter((score) => score !== null);
    for (let step = found.length; step < own.length; step++) found.push((step ? found[step - 1] : 0) + own[step]);
    return found;
  }

  get best() { return this.hypotheses[0]; }
  // By how many nats the members differ most on a token of the output, and at which step; null without members.
  disagreement(output) {
    const scores = output && this.memberScores(output);
    if (!scores || scores.length < 2) return null;
    const spread = scores[0].map((_, step) => Math.max(...scores.map((own) => own[step] ?? -99)) - Math.min(...scores.map((own) => own[step] ?? -99)));
    const most = Math.max(...spread);
    return { spread, most, step: spread.indexOf(most) };
  }

  // By how much the model scores the reference higher than the output; NaN without a reference.
  get error() { return this.reference && this.best && this.reference.score !== null ? this.reference.score - this.best.score : NaN; }
  get missed() { return this.error > 1e-4 && this.fate && this.fate.fate !== "found"; }

  mark() {
    if (!this.fate) return "";
    if (this.fate.fate === "found") return `\u25cf #${this.fate.rank + 1}`;
    return (this.missed ? "\u25b2" : "\u2715") + ` step ${this.fate.step + 1}`;
  }

  reason(step, rank) {
    const { outcomes, finished = [] } = this.steps[step], letter = outcomes[rank], last = step === this.steps.length - 1;
    if (letter === "C") return last ? "dropped: the sentence is done" : `continues as beam ${this.steps[step].next.indexOf(rank) + 1}`;
    if (letter === "F") {
      const place = this.alive().get(`${step}:${rank}`);
      const score = finished.filter(([r]) => r === rank).map(([, score]) => ` with score ${nats(score)}`).join("");
      return `finished${score}` + (place === undefined ? ", not in the n-best list" : `, hypothesis ${place + 1}`);
    }
    if (letter === "B") return OUTCOMES.B + (isFinite(this.worst(step)) ? `, by ${difference(this.worst(step) - this.steps[step].scores[rank])}` : "");
    return OUTCOMES[letter];
  }
}
