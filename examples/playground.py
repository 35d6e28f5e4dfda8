"""A page to play with a model or an ensemble: ``python examples/playground.py firefox:en-pt``; docs/inspection.md.

It runs on this machine and asks nothing of others. It needs the package gradio (the extra ``playground``).
"""

from __future__ import annotations

import math
import os
import shlex
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # nor does it ask for newer versions
try:
    gr: Any = import_module("gradio")
except ImportError:
    gr = None

from seqgen import Translator, load_models
from seqgen.addons.traces import Trace, TraceWriter, page_of
from seqgen.config import CommonConfig, FastConfig, GenerationConfig, ReadingConfig
from seqgen.extend import (
    FORBIDDEN,
    Arguments,
    ConfigError,
    Details,
    Observer,
    StepRecord,
    TextHypothesis,
    UserError,
    compose_given,
    log,
    option,
    out_of_memory,
    run,
    set_up_device,
)

DESCRIPTION = """opens a page to play with a model or an ensemble: alternatives, probable tokens that a click forces,
attention, the search, and two settings side by side. Keys of generation and fast are the settings it begins with."""

ALTERNATIVES, TOKENS = 4, 8  # alternatives, and probable tokens of each place, if the settings do not say how many
LEVELS = (0.9, 0.6, 0.3, 0.1)  # probabilities at which the colour of a token changes
ELSEWHERE = ("generation.dtype", "generation.observers")  # keys that have no use in the fields of the page


@dataclass
class PlaygroundConfig:
    """The configuration of the command."""

    path: list[str] = option([], "models, as for seqgen-generate; several are an ensemble", role="input_path")
    port: int = option(0, "port of the page; 0 for the first free one from 7860", minimum=0, maximum=65535)
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    fast: FastConfig = field(default_factory=FastConfig)


class ForcedPlaces(Observer):
    """Notes, best first, what would have been probable where the beginning of the output is forced."""

    needs = frozenset({FORBIDDEN})

    def __init__(self) -> None:
        self.places: list[list[tuple[int, float]]] = []

    def observe(self, record: StepRecord) -> None:
        """See ``Observer``; while the beginning is forced, all beams are equal."""
        if record.forbidden is not None:
            tokens, lprobs = record.forbidden.tokens[0].tolist(), record.forbidden.lprobs[0].tolist()
            self.places.append([*zip(tokens, lprobs, strict=True)][:TOKENS])


class Playground:
    """Decodes for the page, and writes its parts as HTML.

    Args:
        translator: the model or ensemble.
        names: the names of the models.
    """

    def __init__(self, translator: Translator, names: Sequence[str]):
        self.translator, self.names, self.words = translator, list(names), translator.task.target_dictionary

    def decode(self, text: str, prefix: str, *settings: str) -> tuple[str, ...]:
        """The outputs, the attention and the search for each of the settings, but not for empty ones after the first.

        Args:
            text: the text; line breaks are spaces.
            prefix: the beginning of the output.
            settings: keys and values, as on the command line.
        """
        line, prefix = (" ".join(given.split("\n")).strip() for given in (text, prefix))
        if not line:
            return (_problem("There is no text yet: type a sentence above."),) * 3
        shown = [one.strip() for number, one in enumerate(settings) if one.strip() or not number]
        heads = [f"<h3>Settings <code>{escape(one or 'those of the model')}</code></h3>" for one in shown]
        sides = zip(*(self._side(line, prefix, one) for one in shown), strict=True)
        pairs = (zip(heads, parts, strict=True) for parts in sides)
        found = ("".join(f"<section>{head}{part}</section>" for head, part in each) for each in pairs)
        return tuple(f"<div class=sides>{sections}</div>" for sections in found)

    def beginning(self, tokens: list[int]) -> tuple[str, str]:
        """The text that begins an output with these tokens, and a note if as text they are read as other tokens."""
        text = self.translator.task.decode(torch.tensor(tokens))
        read = self.translator.task.target_tokenizer.encode(text)
        if read and read == tokens[-len(read) :]:
            return text, ""
        return text, f"As text, this beginning is read as other tokens: {' '.join(map(self.words.symbol, read))}"

    def _side(self, line: str, prefix: str, settings: str) -> tuple[str, str, str]:
        """Outputs, attention and search with these settings; in place of each a sentence if something is wrong."""
        start, forced = time.perf_counter(), ForcedPlaces()
        try:
            translation, notes, attention, search = self._decoded(line, prefix, parse(settings), forced)
        except Exception as error:
            if not isinstance(error, UserError) and not out_of_memory(error):
                raise
            return (_problem(str(error)),) * 3
        sure = getattr(translation, "confidence", None)
        facts = f"decoded in {time.perf_counter() - start:.2f} s"
        facts += "" if sure is None else f"; it is good enough with a probability of {_percent(sure)}"
        outputs = [self._alternative(rank, item, forced) for rank, item in enumerate(translation.hypotheses, 1)]
        return "".join([*outputs, f"<ul><li>{'<li>'.join([facts, *map(escape, notes)])}</ul>"]), attention, search

    def _decoded(self, line: str, prefix: str, given: dict[str, Any], forced: ForcedPlaces) -> tuple[Any, ...]:
        """The translation of the line, its notes, its attention and the search, both from the page of a trace."""
        given = {**given, "observers": [forced]} if prefix else given
        details = Details(attention=self.translator.shares_vocabulary)
        shown = {"nbest": min(ALTERNATIVES, self.translator.settings(**given).beam), "top_tokens": TOKENS, **given}
        try:
            decoding = self.translator.prepare(details, **shown)
        except ConfigError:  # the strategy has no alternatives or probable tokens, or the user is wrong
            decoding = self.translator.prepare(details, **given)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trace.jsonl")
            try:
                writer = TraceWriter(file, decoding, names=self.names)
            except ConfigError as error:  # strategies with a loop of their own have no steps to show
                (translation,) = decoding.translate([line], [prefix])
                return translation, [*translation.notes, *decoding.notes], *([_problem(str(error))] * 2)
            with writer:
                (translation,) = decoding.translate(writer.lines([line]), [prefix])
                writer.add(translation)
            trace = page_of(Trace(file))
        parts = ("main > :not(:has(#nbest, #attention))", "nav")  # hidden for the attention and for the search
        frames = [escape(trace.replace("<head>", EMBEDDED.format(part), 1)) for part in parts]
        attention, search = (f'<iframe title="Steps" srcdoc="{frame}"></iframe>' for frame in frames)
        if not any(item.attention is not None for item in translation.hypotheses):
            attention = _problem("There are no attention weights of this output.")
        return translation, [*translation.notes, *decoding.notes], attention, search

    def _piece(self, token: int) -> str:
        return escape(self.words.symbol(token).removeprefix("▁") or "␣")

    def _alternative(self, rank: int, item: TextHypothesis, forced: ForcedPlaces) -> str:
        """A hypothesis: its score, its tokens, and for each of them, hidden at first, the most probable ones."""
        tokens, panels, chips = item.tokens.tolist(), "", ""
        tops: list[list[tuple[int, float]]] = [[] for _ in tokens]
        if item.top_tokens is not None and item.top_scores is not None:
            rows = zip(item.top_tokens.tolist(), item.top_scores.tolist(), strict=True)
            tops = [[pair for pair in zip(*row, strict=True) if pair[1] > -math.inf] for row in rows]
        tops[: len(forced.places)] = forced.places[: len(tops)]
        for place, (token, lprob, top) in enumerate(zip(tokens, item.positional_scores.tolist(), tops, strict=True)):
            probability = math.exp(dict(top).get(token, lprob))
            style = f"token l{sum(probability < bound for bound in LEVELS)}"
            style += " start" if self.words.symbol(token).startswith("▁") else ""
            shown = f"{self._piece(token)} <small>{_percent(probability)}</small>"
            chips += f'<button class="{style}" aria-expanded=false data-at={place}>{shown}</button>'
            panels += "<div class=panel hidden><p>Click a token to force it here, and decode on:</p>"
            for other, score in top:
                state = " class=chosen" * (other == token) + " disabled" * (other == self.words.eos())
                shown = f"{self._piece(other)} <small>{_percent(math.exp(score))}</small>"
                panels += f"<button{state} data-place={place} data-token={other}>{shown}</button>"
            panels += "</div>"
        total = f"{item.score:.3f}".replace("-", "−")
        head = f"<div class=alternative data-tokens='{tokens}'><div>{rank} <small>{total}</small></div>"
        return f"{head}<div><p class=tokens>{chips}</p>{panels}</div></div>"


def parse(settings: str) -> dict[str, Any]:
    """The settings of a decode, by key.

    Args:
        settings: keys and values, as on the command line.

    Raises:
        ConfigError: a key is unknown, or a value has the wrong type or range.
    """
    try:
        words = shlex.split(settings)
    except ValueError as error:
        raise ConfigError(f"{settings}: {error}") from None
    given = compose_given(PlaygroundConfig, words)[1]
    if wrong := {word.partition("=")[0] for word in words} - (given.keys() - ELSEWHERE):
        raise ConfigError(f"{min(wrong)} cannot be set on the page; give keys of decoding, such as generation.beam=5")
    return {key.removeprefix("generation."): value for key, value in given.items()}


def _percent(probability: float) -> str:
    return f"{100 * probability:.0f}%" if probability >= 0.01 else "&lt;1%"


def _problem(message: str) -> str:
    return f"<p class=problem role=alert>{escape(message)}</p>"


CSS = """
.gradio-container { width: 100%; --color-accent: #0063a3; --input-placeholder-color: #66707a; }
.dark .gradio-container, .dark.gradio-container { --color-accent: #6cbcf4; --input-placeholder-color: #98a3ad; }
.play { --ink: #1c2126; --soft: #57616b; --line: #d9dee2; --hover: #eef3f7; color: var(--ink);
  --alarm: #a3261b; --l1: #fdf1d3; --l2: #fbdf9f; --l3: #f7c26b; --l4: #f09c4a; }
.dark .play { --ink: #e8ebee; --soft: #a8b3bd; --line: #3a434c; --hover: #2a323a;
  --alarm: #ff9d92; --l1: #3a3019; --l2: #57431c; --l3: #755520; --l4: #8f5720; }
.play h1 { font-size: 1.25rem; font-weight: 600; } .play p, .play ul, .play small, .play code { color: var(--soft); }
.play h3 { font-size: .875rem; font-weight: 600; margin-bottom: .5rem; } .play .problem { color: var(--alarm); }
.play h3 code { display: block; font-weight: 400; } .play small { font-size: .75rem; }
.play ul { font-size: .8125rem; list-style: none; } .play ul, .play h3, .problem { overflow-wrap: anywhere; }
.play iframe { width: 100%; height: 46rem; border: 1px solid var(--line); border-radius: 6px; }
.play button { border-radius: 4px; padding: 0 .25rem; border: 1px solid transparent; color: var(--ink); }
.play button:hover, .play [aria-expanded=true] { border-color: var(--color-accent); }
.sides { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.sides:has(iframe) { grid-template-columns: 1fr; } .sides section { min-width: 0; }
.alternative { display: grid; grid-template-columns: 3.5rem 1fr; padding: .5rem 0; border-top: 1px solid var(--line); }
.alternative div > small, .token small { display: block; } .tokens { display: flex; flex-wrap: wrap; row-gap: .25rem; }
.play .token { line-height: 1.2; } .token.start { margin-left: .3rem; } .play .token small { color: var(--ink); }
.token.l0 small { visibility: hidden; width: 0; } .panel[hidden] { display: none; } .panel small { margin-left: .5rem; }
.l1 { background: var(--l1) } .l2 { background: var(--l2) } .l3 { background: var(--l3) } .l4 { background: var(--l4) }
.panel button { margin: .25rem .25rem 0 0; } .play .panel button:not(:hover) { border-color: var(--line); }
.panel button:disabled { opacity: .6; } .panel .chosen { background: var(--hover); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem .5rem; font-size: .8125rem; } .panel { margin: .25rem 0 .5rem; }
.legend b { font-weight: 400; padding: 0 .35rem; border-radius: 4px; color: var(--ink); border: 1px solid var(--line); }
"""
SCRIPT = """
element.addEventListener("click", event => {
  const button = event.target.closest("button"), all = button?.closest(".alternative"), data = button?.dataset;
  if (data?.token) trigger("select", [...JSON.parse(all.dataset.tokens).slice(0, data.place), Number(data.token)]);
  if (!data?.at) return;
  const panel = all.querySelectorAll(".panel")[data.at], opens = panel.hidden;
  element.querySelectorAll(".token").forEach(one => { one.ariaExpanded = String(opens && one === button); });
  element.querySelectorAll(".panel").forEach(one => { one.hidden = !opens || one !== panel; });
});
"""
LEGEND = """<p class=legend>Probability of a token: <b>above 90%</b><b class=l1>60 to 90%</b><b class=l2>30 to 60%</b>
<b class=l3>10 to 30%</b><b class=l4>below 10%</b> Click a token for what could stand in its place.</p>"""
EMBEDDED = '<head><base href="about:srcdoc"><style>header, nav, .top, {} {{ display: none !important; }}</style>'
# begins the page of the trace: its list of sentences has one only, and its links are fragments of the frame


def page(play: Playground, settings: str) -> Any:
    """The page, which ``launch`` shows.

    Args:
        play: decodes.
        settings: the settings it begins with.
    """

    def force(event: Any, text: str, *others: str) -> tuple[str, ...]:
        prefix, note = play.beginning(event._data)
        if note:
            gr.Info(note)
        return prefix, *play.decode(text, prefix, *others)

    force.__annotations__["event"] = gr.EventData  # by which gradio knows what to pass
    plain = {"elem_classes": "play", "apply_default_css": False}
    short = {"max_lines": 1, "min_width": 300}  # on a narrow page one is below the other
    wide = {"lines": 2, "max_lines": 8, "min_width": 300}
    with gr.Blocks(title="seqgen playground", analytics_enabled=False) as blocks:
        gr.HTML(f"<h1>Playground</h1><p>{escape(' + '.join(play.names))}</p>", **plain)
        with gr.Row():
            text = gr.Textbox(label="Text", placeholder="A sentence; Shift+Enter decodes it", autofocus=True, **wide)
            prefix = gr.Textbox(label="The output begins with", placeholder="Nothing forced", **wide)
        with gr.Row():
            first = gr.Textbox(settings, label="Settings", placeholder="generation.beam=4", **short)
            second = gr.Textbox(label="Other settings, to compare", placeholder="generation.beam=1", **short)
        button = gr.Button("Decode", variant="primary")
        with gr.Tab("Outputs"):
            gr.HTML(LEGEND, **plain)
            outputs = gr.HTML("<p>Type a text, and press Decode.</p>", js_on_load=SCRIPT, **plain)
        with gr.Tab("Attention"):
            attention = gr.HTML(**plain)
        with gr.Tab("Search"):
            search = gr.HTML(**plain)
        fields, found = [text, prefix, first, second], [outputs, attention, search]
        alone: dict[str, Any] = {"concurrency_id": "decode", "concurrency_limit": 1, "api_visibility": "private"}
        gr.on([button.click, *(box.submit for box in fields)], play.decode, fields, found, **alone)
        outputs.select(force, [text, first, second], [prefix, *found], **alone)
    return blocks


def playground(cfg: PlaygroundConfig, arguments: Arguments) -> None:
    """Load the models, and show the page until Ctrl-C.

    Raises:
        UserError: a model or key cannot be used, a package is missing, or the port is not free.
    """
    if not cfg.path:
        raise ConfigError("path is missing: name a model, such as firefox:en-pt or a run folder")
    if gr is None:
        raise ConfigError("the playground needs a package: pip install gradio")
    keys = arguments.given.keys() - ELSEWHERE
    settings = shlex.join(word for word in arguments.overrides if word.partition("=")[0] in keys)
    log(f"loading {', '.join(cfg.path)} ...")
    models = load_models(cfg.path, set_up_device(cfg.common), cfg.reading, note=log)
    translator = Translator(models, dtype=cfg.generation.dtype)
    theme = gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    theme.set(button_primary_background_fill="*primary_600", button_primary_background_fill_hover="*primary_700")
    options: dict[str, Any] = {"server_name": "127.0.0.1", "server_port": cfg.port or None, "ssr_mode": False}
    options |= {"theme": theme, "css": CSS, "footer_links": [], "quiet": True, "prevent_thread_lock": True}
    warnings.filterwarnings("ignore", module="gradio")
    try:
        blocks = page(Playground(translator, cfg.path), settings or "generation.beam=4")
        _, address, _ = blocks.launch(**options)
    except OSError:
        raise ConfigError(f"port={cfg.port} is not free; give another port, or 0 for the first free one") from None
    log(f"open {address} in a browser; Ctrl-C ends it")
    blocks.block_thread()


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(PlaygroundConfig, playground, DESCRIPTION, argv, pass_arguments=True, words="path")


if __name__ == "__main__":
    main()
