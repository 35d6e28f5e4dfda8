"""Token healing (examples/papers/token_healing.py) by enumeration of all outputs."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from examples.papers.token_healing import TokenHealing, TokenHealingConfig
from seqgen.core.errors import ConfigError
from seqgen.decoding.building import Resources
from seqgen.text.translator import Translator
from tests.commands import command
from tests.examples.test_automata import letters
from tests.generators import make_generator
from tests.scripted_model import ScriptedModel, batch_of, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

EOS = 2
SOURCES = [(4, 5, 2), (6, 2), (5, 5, 4, 2), (6, 6, 2)]
PREFIXES = ["ab", "b", "", "aab"]
HEALED = [("a", "b"), ("", "b"), ("", ""), ("aa", "b")]  # what is forced, and how the next token begins


def file_of(folder: Path, lines: list[str]) -> str:
    file = folder / "prefixes.txt"
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("models", [1, 2])
def test_the_hypotheses_are_all_outputs_whose_tokens_are_allowed(tmp_path: Path, models: int) -> None:
    words, resources = letters(["a", "b", "ab", "ba", "bab"])
    limit, rules = 4, [random_rule(len(words), seed) for seed in range(models)]
    processor = TokenHealing.build(TokenHealingConfig(file_of(tmp_path, PREFIXES)), resources)
    members = [ScriptedModel(rule) for rule in rules]
    options: dict[str, Any] = {"processors": [processor], "normalize_scores": False, "max_len": limit}
    generator = make_generator(members, words, beam_size=420, **options)
    for source, (forced, start), found in zip(SOURCES, HEALED, generator.generate(batch_of(SOURCES)), strict=True):
        wanted = {}
        for length in range(len(forced) + 1, limit):
            for tokens in itertools.product((0, *range(3, len(words))), repeat=length):
                symbols = [words.symbol(token) for token in tokens]
                if symbols[: len(forced)] == [*forced] and symbols[len(forced)].startswith(start):
                    output, score = (*tokens, EOS), 0.0
                    for n, token in enumerate(output):
                        each = [float(rule(source, output[:n]).softmax(0)[token]) for rule in rules]
                        score += math.log(sum(each) / models)
                    wanted[output] = pytest.approx(score)
        assert len(wanted) > 2
        assert {tuple(h.tokens.tolist()): h.score for h in found if h.score > -1e9} == wanted


def test_refusals_and_the_command_line(tmp_path: Path) -> None:
    keys = {"processors": ["token_healing"], "processor.token_healing.prefixes": file_of(tmp_path, ["w1"])}
    with pytest.raises(ConfigError, match="fewer lines than the input"):
        Translator(text_model(), **keys).translate(TEXTS)
    with pytest.raises(ConfigError, match="no such file"):
        Translator(text_model(), processors=["token_healing"]).translate(TEXTS)
    words, _ = letters(["a"])
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        TokenHealing.build(TokenHealingConfig(""), Resources(words))
    file = Path(__file__).parent.parent.parent / "examples" / "papers" / "token_healing.py"
    arguments = (f"common.user_dir={file}", f"path={tmp_path}", "generation.processors=[token_healing]")
    outcome = command("generate", *arguments, "processor.token_healing.prefix=x")
    assert outcome.code == 2
    assert "processor.token_healing.prefixes" in outcome.err
