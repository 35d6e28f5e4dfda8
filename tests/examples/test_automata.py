"""Regular expressions and JSON (examples/papers/automata) by enumeration, and against re and json."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from examples.dates import LetterTokenizer
from examples.papers.automata.automaton import Automaton
from examples.papers.automata.json_texts import Json, JsonConfig, JsonProcessor
from examples.papers.automata.regular import Regex, RegexConfig, RegexProcessor
from seqgen.core.errors import ConfigError
from seqgen.data.dictionary import Dictionary
from seqgen.decoding.building import Resources
from seqgen.text.translator import Translator
from tests.commands import command
from tests.generators import make_generator
from tests.scripted_model import ScriptedModel, batch_of, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

EOS = 2
SOURCES = [(4, 5, 2), (6, 2), (5, 5, 4, 2)]
PATTERNS = ["", "ab|c", "(a|b)*c", "a+b?", "(ab){2,3}", "a{2}|b{1,}", "[ab]c*", "[^a]{1,2}", "(a*)*b", "(|a)b+", "a.c"]


def reads(automaton: Automaton, text: str) -> bool:
    state: Any = automaton.start
    for character in text:
        if (state := automaton.step(state, character)) is None:
            return False
    return automaton.accepts(state)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_regular_expression_accepts_what_re_matches(pattern: str) -> None:
    for length in range(7):
        for text in map("".join, itertools.product("abc", repeat=length)):
            assert reads(Regex(pattern), text) == (re.fullmatch(pattern, text) is not None), text


def test_classes_and_escapes() -> None:
    for pattern in (r"\d+", r"\w", r"\s", r"[\dx-z\]]", r"\.", r"[a\-c]", r"[^\s]", r"[-a]", "[a-]", "."):
        for character in "a7x-z] \n.c_bß":
            assert reads(Regex(pattern), character) == (re.fullmatch(pattern, character) is not None)


def letters(symbols: list[str]) -> tuple[Dictionary, Resources]:
    words = Dictionary()
    for symbol in symbols:
        words.add_symbol(symbol)
    tokenizer = LetterTokenizer(words)
    return words, Resources(words, tokenizer.encode, tokenizer.decode)


@pytest.mark.parametrize("semantics", ["", "huggingface"])
@pytest.mark.parametrize("limit", [2, 4])
def test_the_hypotheses_are_the_best_of_all_outputs_that_match(limit: int, semantics: str) -> None:
    """With a beam that keeps everything, the search finds exactly the matching outputs within the maximum length."""
    words, resources = letters(["a", "b", "ab", "ba"])
    pattern = "(ab)+|a?bb"
    rule = random_rule(len(words), 3)
    processor = RegexProcessor.build(RegexConfig(pattern), resources)
    options = {"processors": [processor], "semantics": semantics, "normalize_scores": False}
    generator = make_generator([ScriptedModel(rule)], words, beam_size=80, max_len=limit + 1, **options)
    for source, found in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
        wanted = {}
        for length in range(1, limit + 1):
            for tokens in itertools.product(range(4, len(words)), repeat=length):
                if re.fullmatch(pattern, "".join(words.symbol(token) for token in tokens)):
                    output = (*tokens, EOS)
                    steps = [rule(source, output[:n]).log_softmax(0)[token] for n, token in enumerate(output)]
                    wanted[output] = float(sum(steps))
        assert {tuple(h.tokens.tolist()): pytest.approx(h.score) for h in found if h.score > -1e9} == wanted


def random_json(generator: random.Random, depth: int) -> Any:
    kind = generator.randrange(7 if depth else 5)
    if kind < 5:
        return [None, True, generator.randrange(-99, 99), generator.random() * 1e-7, 'a"\\\u00e9\n'][kind]
    values = [random_json(generator, depth - 1) for _ in range(generator.randrange(3))]
    return values if kind == 5 else {str(number): value for number, value in enumerate(values)}


def test_json_reads_what_json_writes_and_only_what_json_reads() -> None:
    generator, automaton = random.Random(0), Json(3, "value")
    for _ in range(300):
        text = json.dumps(random_json(generator, 3))
        assert reads(automaton, text), text
        place = generator.randrange(len(text))
        changed = text[:place] + generator.choice('{}[]",:0-e.t\\') + text[place + generator.randrange(2) :]
        if reads(automaton, changed):
            json.loads(changed)
    assert not reads(Json(3, "object"), "[1]")
    assert not reads(Json(2), '{"a":[[]]}')
    assert reads(Json(3), '{"a":[[]]}')


SYMBOLS = [*'{}[]":0123456789,-.eE+\\u abxtrufalsn', '":', '{"', "]}", '","', "true"]


@pytest.mark.parametrize("limit", [2, 3, 7, 20])
@pytest.mark.parametrize("options", [{"beam_size": 4}, {"beam_size": 1}], ids=["beam", "greedy"])
@pytest.mark.parametrize("semantics", ["", "huggingface"])
def test_json_always_parses(limit: int, options: dict[str, Any], semantics: str) -> None:
    """Random models do not end by themselves: nearly all outputs are closed at the maximum length."""
    words, resources = letters(list(dict.fromkeys(SYMBOLS)))
    processor = JsonProcessor.build(JsonConfig("object", 3), resources)
    model = ScriptedModel(random_rule(len(words), 5, sharpness=3.0))
    generator = make_generator(
        [model, model], words, processors=[processor], max_len=limit + 1, semantics=semantics, **options
    )
    for hypotheses in generator.generate(batch_of(SOURCES)):
        assert hypotheses
        for hypothesis in hypotheses:
            if hypothesis.score > -1e9:
                assert len(hypothesis.tokens) <= limit + 1
                parsed = json.loads("".join(words.symbol(t) for t in hypothesis.tokens.tolist() if t != EOS))
                assert isinstance(parsed, dict)


def test_refusals_and_the_command_line(tmp_path: Path) -> None:
    translator = Translator(text_model())
    with pytest.raises(ConfigError, match="no sequence of tokens"):
        translator.translate(TEXTS, processors=["regex"], **{"processor.regex.pattern": "x+"})
    with pytest.raises(ConfigError, match="needs tokens for single characters"):
        translator.translate(TEXTS, processors=["json"])
    folder = Path(__file__).parent.parent.parent / "examples" / "papers" / "automata"
    arguments = (f"common.user_dir={folder}", f"path={tmp_path}", "generation.processors=[regex,json]")
    for key, wanted in (("processor.regex.patern=x", "pattern"), ("processor.json.root=list", "object")):
        outcome = command("generate", *arguments, key)
        assert outcome.code == 2
        assert wanted in outcome.err
