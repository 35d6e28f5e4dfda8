"""Notes on outputs: a limit that cut an output off, too few hypotheses, and outputs that may lack a part."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seqgen.config import GenerationConfig
from seqgen.config.generation import keys_tagged
from seqgen.config.options import LISTS_OUTPUTS
from seqgen.core.setup import DecodingSetup
from seqgen.core.structures import Hypothesis
from seqgen.task import Task
from seqgen.text.input_line import InputLine
from seqgen.text.results import TextHypothesis

MIN_SOURCE_TOKENS, SHORT_OUTPUT_DIVISOR = 40, 3
"""An output is noted if its source has at least 40 tokens, and it has less than a third as many."""


ADVICE = {"input_split": "; decode paragraphs with generation.input_split=sentences"}
"""What the user of such an output can do, by the key that it names, which an add-on declares."""


@dataclass(frozen=True)
class OutputNotes:
    """Writes the notes on the outputs of a line.

    Attributes:
        cfg: the decoding settings.
        setup: how outputs are decoded.
        task: the task of the first model.
    """

    cfg: GenerationConfig
    setup: DecodingSetup
    task: Task

    def on_search(self, line: InputLine, hypotheses: Sequence[Hypothesis], find: Callable[[], str]) -> list[str]:
        """Notes on a search that found no hypothesis, or fewer than ``nbest``.

        Args:
            line: the line.
            hypotheses: what was found.
            find: returns the name of the component that forbids all outputs; empty if none is found.
        """
        if not hypotheses:
            in_time = " and generation.max_time" if self.cfg.max_time else ""
            missing = f"no output within the maximum length{in_time} has all phrases"
            if not line.phrases:
                missing = "every output was forbidden" + (f" by {name}" if (name := find()) else "")
            return [f"{missing}, so the output is empty"]
        if len(hypotheses) < self.cfg.nbest:
            possible = "have all phrases" if line.phrases else "are possible"
            why = "were found in time" if hypotheses[0].timed_out else possible
            return [f"only {len(hypotheses)} of {self.cfg.nbest} hypotheses {why}"]
        return []

    def on_outputs(self, line: InputLine, hypotheses: Sequence[TextHypothesis]) -> list[str]:
        """Notes on the first hypothesis that a limit has cut off, and on a best output that is much too short."""
        longest = line.longest_output
        if self.cfg.match_source_len and longest == len(line.sources[0]) - 1:
            longest = sys.maxsize  # the user wants exactly that length
        cuts = [self._cut(item, longest) for item in hypotheses]
        place = next((place for place, cut in enumerate(cuts, start=1) if cut), 0)
        notes = [f"{'the output' if place == 1 else f'hypothesis {place}'} {cuts[place - 1]}"] if place else []
        if place != 1 and hypotheses:
            notes += filter(None, [self._lacking(line, hypotheses[0])])
        return notes

    def _lacking(self, line: InputLine, item: TextHypothesis) -> str:
        """Describe what an output that no limit has cut off may lack; empty if nothing was found."""
        source, output = len(line.sources[0]), len(item.tokens)
        if self.task.translates and not item.text.strip():
            return "the output is empty, which generation.min_len or length_penalty can prevent"
        short = source >= MIN_SOURCE_TOKENS and output < source / SHORT_OUTPUT_DIVISOR
        if self.task.translates and short:
            advice = "".join(text for key, text in ADVICE.items() if not getattr(self.cfg, key, True))
            return f"the output has {output} tokens for {source} of the source and may lack a part{advice}"
        return ""

    def _cut(self, item: TextHypothesis, longest: int) -> str:
        """Describe how a limit changed an output, whose last token may be an end token that the limit forced.

        Args:
            item: the output.
            longest: maximum output length in tokens, without end-of-sentence.

        Returns:
            Words that follow "the output" in a note, such as "was cut off ..."; empty if no limit changed it.
        """
        cfg, size, forces_end = self.cfg, len(item.tokens), self.setup.forces_end
        whole = (
            not item.forced_end if item.member_tokens else size > 0 and int(item.tokens[-1]) in self.setup.end_tokens
        )
        listing = next((key for key in keys_tagged(LISTS_OUTPUTS) if getattr(cfg, key)), "")
        rest = f" (it is only the beginning of a line of generation.{listing})" if listing and not whole else ""
        if item.member_tokens is not None and not whole and not item.timed_out:
            return "was cut off: no token was left on which all models agree, or a model reached its maximum length"
        longest -= forces_end and not whole  # Marian's search ends there without an end token
        if size > longest and (forces_end or not whole):
            empty = "" if item.text.strip() else "is empty and "
            return f"{empty}has the maximum length of {size} tokens and may be cut off{rest}"
        if item.timed_out and not whole:
            return f"was cut off after generation.max_time={cfg.max_time:g}{rest}"
        if item.timed_out and self.setup.beam_size > 1:
            return f"is the best one after generation.max_time={cfg.max_time:g}, which ended the search"
        return "was cut off by a stopping rule" + rest if rest else ""
