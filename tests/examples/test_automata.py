"""Regular expressions, JSON, grammars and token healing of examples/papers by enumeration, and against re and json."""

import functools
import itertools
import json
import math
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from examples.dates import LetterTokenizer
from examples.papers.automata.automaton import Automaton
from examples.papers.automata.characters import Terminal
from examples.papers.automata.earley import Earley
from examples.papers.automata.gbnf import GrammarFile, Rules
from examples.papers.automata.json_texts import Json, JsonConfig, JsonProcessor
from examples.papers.automata.processor import GrammarConfig, GrammarProcessor
from examples.papers.automata.regular import Regex, RegexConfig, RegexProcessor
from examples.papers.token_healing import TokenHealing, TokenHealingConfig
from seqgen.extend import Dictionary, Resources
from tests.generators import make_generator
from tests.scripted_model import ScriptedModel, batch_of, random_rule

pytestmark = pytest.mark.slow

EOS = 2
SOURCES = [(4, 5, 2), (6, 2), (5, 5, 4, 2), (6, 6, 2)]


def reads(automaton: Automaton, text: str) -> bool:
    state = state_after(automaton, text)
    return state is not None and automaton.accepts(state)


def state_after(automaton: Automaton, text: str) -> Any:
    return functools.reduce(lambda state, c: None if state is None else automaton.step(state, c), text, automaton.start)


def texts_of(alphabet: str, lengths: Iterable[int]) -> list[str]:
    return ["".join(letters) for length in lengths for letters in itertools.product(alphabet, repeat=length)]


def grammar_of(text: str, folder: Path) -> Path:
    path = folder / "grammar.gbnf"
    path.write_text(text, encoding="utf-8")
    return path


PATTERNS = ["", "ab|c", "(a|b)*c", "a+b?", "(ab){2,3}", "a{2}|b{1,}", "[ab]c*", "[^a]{1,2}", "(a*)*b", "(|a)b+", "a.c"]
PATTERNS += [r"\d+", r"\w", r"\s", r"[\dx-z\]]", r"\.", r"[a\-c]", r"[^\s]", r"[-a]", "[a-]", "."]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_regular_expression_accepts_what_re_matches(pattern: str) -> None:
    for text in (*texts_of("abc", range(7)), *"a7x-z] \n.c_bß"):
        assert reads(Regex(pattern), text) == (re.fullmatch(pattern, text) is not None), text


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


GRAMMARS = {
    "brackets": 'root ::= "" | "a" root "b" root',
    "left recursion": 'root ::= root "a" | root "b" root | "c"',
    "right recursion": 'root ::= "a" root | "b"',
    "ambiguity": 'root ::= root root | "a" | "bc" | "b" | "c"',
    "palindromes": 'root ::= "a" root "a" | "b" root "b" | "a"? | "b"',
    "mutual recursion": 'root ::= x "a" | "b"\nx ::= y "b" | "c"\ny ::= root | x "c" | ""',
    "cycles": 'root ::= x | "a"\nx ::= root | y | x y\ny ::= root? "b" | ""',
    "hidden left recursion": 'root ::= e root "a" | "b"\ne ::= "" | "c"',
    "nullable ends": 'root ::= x e e\nx ::= "a" x e | "b" e\ne ::= "c"*',
    "not regular": 'root ::= x "c"*\nx ::= "a" x "b" | "ab"',
}


def language(rules: Rules, longest: int, alphabet: str = "abc") -> set[str]:
    """All texts of the rule ``root`` up to a length, by adding texts until nothing is new."""
    texts: dict[str, set[str]] = {name: set() for name in rules}
    changed = True
    while changed:
        changed = False
        for name, alternatives in rules.items():
            for sequence in alternatives:
                found = {""}
                for symbol in sequence:
                    parts = {c for c in alphabet if symbol.reads(c)} if isinstance(symbol, Terminal) else texts[symbol]
                    by_length = [[part for part in parts if len(part) == length] for length in range(longest + 1)]
                    found = {a + b for a in found for same in by_length[: longest + 1 - len(a)] for b in same}
                changed |= not found <= texts[name]
                texts[name] |= found
    return texts["root"]


@pytest.mark.parametrize("name", GRAMMARS)
def test_prefixes_and_texts_are_those_of_the_language(name: str, tmp_path: Path) -> None:
    """A text has a state if some text of the language begins with it, and the state knows the shortest completion."""
    rules = GrammarFile(grammar_of(GRAMMARS[name], tmp_path)).rules
    automaton, texts = Earley(rules, "root"), language(rules, 9)
    assert len(texts) > 5
    shortest: dict[str, int] = {}
    for text in texts:
        for length in range(len(text) + 1):
            shortest[text[:length]] = min(shortest.get(text[:length], 99), len(text) - length)
    seen = 0
    for prefix in texts_of("abc", range(5)):
        state = state_after(automaton, prefix)
        assert (state is not None) == (prefix in shortest), prefix
        if state is not None:
            assert automaton.accepts(state) == (prefix in texts), prefix
            assert automaton.remaining(state) == shortest[prefix], prefix
            seen += 1
    assert seen > 3


@pytest.mark.parametrize(
    ("written", "pattern"),
    [
        ('"a"{2}', "a{2}"),
        ('"ab"{1,3}', "(ab){1,3}"),
        ('"ab"{2,} "c"?', "(ab){2,}c?"),
        ('("a" | "bc")+ [bc]*', "(a|bc)+[bc]*"),
        ('[^a] . "a"{0,2}', "[^a].a{0,2}"),
        ('("a"? "b"){2}{1,2}', "((a?b){2}){1,2}"),
        ('"" | "a" # a comment "c"\n | "\\x62" [\\u0062-c]', "|a|b[b-c]"),
        ("[a-b-]{3}", "[a-b-]{3}"),
    ],
)
def test_repetitions_and_sets_are_those_of_re(written: str, pattern: str, tmp_path: Path) -> None:
    automaton = Earley(GrammarFile(grammar_of(f"root ::= {written}", tmp_path)).rules, "root")
    for text in texts_of("abc-"[: 3 + ("-" in written)], range(6)):
        assert reads(automaton, text) == (re.fullmatch(pattern, text) is not None), text


def resources_of(*symbols: str) -> Resources:
    """A vocabulary of texts that are joined without spaces."""
    words = Dictionary()
    for symbol in symbols:
        words.add_symbol(symbol)
    tokenizer = LetterTokenizer(words)
    return Resources(words, tokenizer.encode, tokenizer.decode)


def assert_best(processor: Any, words: Dictionary, longest: int, allowed: Any, models: int = 1, **options: Any) -> None:
    """With a beam that keeps everything, the hypotheses are the outputs that are allowed, with the model's scores.

    ``allowed`` is a function of the number of the line and the symbols.
    """
    rules = [random_rule(len(words), seed) for seed in range(models)]
    options = {"processors": [processor], "normalize_scores": False, "min_len": 0, "max_len": longest + 1, **options}
    generator = make_generator([ScriptedModel(rule) for rule in rules], words, beam_size=420, **options)
    ids = (0, *range(3, len(words)))
    outputs = [(*tokens, EOS) for length in range(longest + 1) for tokens in itertools.product(ids, repeat=length)]
    for line, (source, found) in enumerate(zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True)):
        wanted = {}
        for output in outputs:
            if allowed(line, [words.symbol(token) for token in output[:-1]]):
                each = [
                    sum(rule(source, output[:n]).softmax(0)[token] for rule in rules) for n, token in enumerate(output)
                ]
                wanted[output] = pytest.approx(sum(math.log(p / len(rules)) for p in each))
        assert len(wanted) > 2
        assert {tuple(h.tokens.tolist()): h.score for h in found if h.score > -1e9} == wanted


@pytest.mark.parametrize("semantics", ["", "huggingface"])
@pytest.mark.parametrize("longest", [2, 4])
def test_outputs_of_a_regular_expression_are_the_best_that_match(longest: int, semantics: str) -> None:
    resources, pattern = resources_of("a", "b", "ab", "ba"), "(ab)+|a?bb"
    processor = RegexProcessor.build(RegexConfig(pattern), resources)
    matches = re.compile(pattern).fullmatch
    assert_best(processor, resources.dictionary, longest, lambda line, x: matches("".join(x)), semantics=semantics)


@pytest.mark.parametrize("semantics", ["", "huggingface"])
@pytest.mark.parametrize("name", ["brackets", "left recursion", "ambiguity", "palindromes", "cycles"])
def test_outputs_of_a_grammar_are_the_best_of_its_language(name: str, semantics: str, tmp_path: Path) -> None:
    resources, path = resources_of("a", "b", "c"), grammar_of(GRAMMARS[name], tmp_path)
    texts = language(GrammarFile(path).rules, 4)
    processor = GrammarProcessor.build(GrammarConfig(str(path)), resources)
    assert_best(processor, resources.dictionary, 4, lambda line, x: "".join(x) in texts, semantics=semantics)


HEALED = [("a", "b"), ("", "b"), ("", ""), ("aa", "b")]
"""For the prefix of each line what is forced, and how the next token begins."""


@pytest.mark.parametrize("models", [1, 2])
def test_outputs_of_token_healing_have_a_token_that_begins_as_the_prefix_ends(models: int, tmp_path: Path) -> None:
    resources = resources_of("a", "b", "ab", "ba", "bab")
    (tmp_path / "prefixes").write_text("ab\nb\n\naab\n")
    processor = TokenHealing.build(TokenHealingConfig(str(tmp_path / "prefixes")), resources)

    def allowed(line: int, symbols: list[str]) -> bool:
        forced, start = HEALED[line]
        rest = symbols[len(forced) :]
        return symbols[: len(forced)] == [*forced] and bool(rest) and rest[0].startswith(start)

    assert_best(processor, resources.dictionary, 3, allowed, models, min_len=1)


SYMBOLS = [*'{}[]":0123456789,-.eE+\\u abxtrufalsn', '":', '{"', "]}", '","', "true"]


@pytest.mark.parametrize("limit", [2, 3, 7, 20])
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("semantics", ["", "huggingface"])
def test_json_always_parses(limit: int, beam: int, semantics: str) -> None:
    """Random models do not end by themselves: nearly all outputs are closed at the maximum length."""
    resources = resources_of(*dict.fromkeys(SYMBOLS))
    words = resources.dictionary
    processor = JsonProcessor.build(JsonConfig("object", 3), resources)
    model = ScriptedModel(random_rule(len(words), 5, sharpness=3.0))
    options = {"processors": [processor], "max_len": limit + 1, "semantics": semantics, "beam_size": beam}
    generator = make_generator([model, model], words, **options)
    for hypotheses in generator.generate(batch_of(SOURCES)):
        assert hypotheses
        for hypothesis in hypotheses:
            if hypothesis.score > -1e9:
                assert len(hypothesis.tokens) <= limit + 1
                parsed = json.loads("".join(words.symbol(t) for t in hypothesis.tokens.tolist() if t != EOS))
                assert isinstance(parsed, dict)
