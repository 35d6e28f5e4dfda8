"""Context-free grammars (examples/papers/automata) against enumeration of their languages, and against re."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from examples.dates import LetterTokenizer
from examples.papers.automata.characters import Terminal
from examples.papers.automata.earley import Earley
from examples.papers.automata.gbnf import GrammarFile, Rules
from examples.papers.automata.processor import GrammarConfig, GrammarProcessor
from seqgen.core.errors import ConfigError, DataError
from seqgen.decoding.building import Resources
from seqgen.text.translator import Translator
from tests.commands import command
from tests.examples.test_automata import letters
from tests.generators import make_generator
from tests.scripted_model import ScriptedModel, batch_of, random_rule
from tests.text_models import task_of, text_model

pytestmark = pytest.mark.slow

EOS = 2
SOURCES = [(4, 5, 2), (6, 2), (5, 5, 4, 2)]
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


def grammar_of(text: str, folder: Path) -> GrammarFile:
    path = folder / "grammar.gbnf"
    path.write_text(text, encoding="utf-8")
    return GrammarFile(path)


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


def state_after(automaton: Earley, text: str) -> int | None:
    state: int | None = automaton.start
    for character in text:
        state = None if state is None else automaton.step(state, character)
    return state


@pytest.mark.parametrize("name", GRAMMARS)
def test_prefixes_and_texts_are_those_of_the_language(name: str, tmp_path: Path) -> None:
    """A text has a state if some text of the language begins with it, and the state knows the shortest completion."""
    rules = grammar_of(GRAMMARS[name], tmp_path).rules
    automaton, texts = Earley(rules, "root"), language(rules, 9)
    assert len(texts) > 5
    shortest: dict[str, int] = {}
    for text in texts:
        for length in range(len(text) + 1):
            shortest[text[:length]] = min(shortest.get(text[:length], 99), len(text) - length)
    seen = 0
    for length in range(5):
        for prefix in map("".join, itertools.product("abc", repeat=length)):
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
    automaton = Earley(grammar_of(f"root ::= {written}", tmp_path).rules, "root")
    for length in range(6):
        for text in map("".join, itertools.product("abc-"[: 3 + ("-" in written)], repeat=length)):
            state = state_after(automaton, text)
            accepted = state is not None and automaton.accepts(state)
            assert accepted == (re.fullmatch(pattern, text) is not None), text


def processor_of(text: str, resources: Resources, folder: Path) -> GrammarProcessor:
    path = folder / "grammar.gbnf"
    path.write_text(text, encoding="utf-8")
    return GrammarProcessor.build(GrammarConfig(str(path)), resources)


@pytest.mark.parametrize("semantics", ["", "huggingface"])
@pytest.mark.parametrize("name", ["brackets", "left recursion", "ambiguity", "palindromes", "cycles"])
def test_the_hypotheses_are_the_best_of_all_texts_of_the_language(name: str, semantics: str, tmp_path: Path) -> None:
    """With a beam that keeps everything, the search finds exactly the language up to the maximum length."""
    words, resources = letters(["a", "b", "c"])
    rule, limit = random_rule(len(words), 3), 4
    processor = processor_of(GRAMMARS[name], resources, tmp_path)
    options = {"processors": [processor], "semantics": semantics, "normalize_scores": False, "min_len": 0}
    generator = make_generator([ScriptedModel(rule)], words, beam_size=130, max_len=limit + 1, **options)
    texts = language(grammar_of(GRAMMARS[name], tmp_path).rules, limit)
    for source, found in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
        wanted = {}
        for text in texts:
            output = (*(words.index(letter) for letter in text), EOS)
            steps = [rule(source, output[:n]).log_softmax(0)[token] for n, token in enumerate(output)]
            wanted[output] = float(sum(steps))
        assert {tuple(h.tokens.tolist()): pytest.approx(h.score) for h in found if h.score > -1e9} == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "has no rule 'root'"),
        ('root ::= x\n  | nmae\nname ::= x\nx ::= "a"', r"line 2 of .* 'nmae', .*no rule \(did you mean 'name'\?\)"),
        ('root ::= "a"\n | "b', "line 2 of .* cannot be read from '\"b' on"),
        ('root ::= "\\q"', "line 1 of .* cannot be read"),
        ('root ::= ("a"\n\nx ::= "b"', r"line 1 of .* has '\(' without '\)'"),
        ('root ::= "a"{3,2}', r"line 1 of .* repeats \{3,2\} times"),
        ('root root ::= "a"', "line 1 of .* has 'root' where a rule"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "line 1 of .* more than 100 groups"),
        ('root ::= "a"\nx ::= "b" x | x "c"', "line 2 of .* has the rule 'x', which never ends"),
        ('root ::= "a" | [^a-c]', "line 1 of .* needs a character that is no token"),
    ],
)
def test_wrong_grammars_are_refused_with_the_line(text: str, wanted: str, tmp_path: Path) -> None:
    _, resources = letters(["a", "b", "c", "ae"])
    with pytest.raises((ConfigError, DataError), match=wanted) as caught:
        processor_of(text, resources, tmp_path)
    assert "\n" not in str(caught.value)


def test_the_command_line(tmp_path: Path) -> None:
    folder = Path(__file__).parent.parent.parent / "examples" / "papers" / "automata"
    arguments = (f"common.user_dir={folder}", f"path={tmp_path}", "generation.processors=[grammar]")
    outcome = command("generate", *arguments, "processor.grammar.fil=x")
    assert outcome.code == 2
    assert "file" in outcome.err
    translator = Translator(text_model(task=task_of(LetterTokenizer(letters(["a"])[0]))))
    with pytest.raises(ConfigError, match=r"needs processor\.grammar\.file=FILE"):
        translator.translate(["a"], processors=["grammar"])
    with pytest.raises(DataError, match=r"none\.gbnf"):
        translator.translate(["a"], processors=["grammar"], **{"processor.grammar.file": str(tmp_path / "none.gbnf")})
