"""Search among allowed outputs: the trie and its file, the scores of allowed tokens alone, and certificates."""

import itertools
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.addons.catalogue.certificate import Certificate
from seqgen.addons.catalogue.constraint import TrieConstraint, trie_of_file
from seqgen.addons.catalogue.prefix_trie import PrefixTrie
from seqgen.config import FastConfig, GenerationConfig
from seqgen.core.observers import Observer, StepRecord
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.extend import DataError, DecodingSetup, Hypothesis, PrefixConstraint, Ranking, build_setup
from seqgen.text.translator import Translator
from tests.commands import command, done
from tests.generators import resources
from tests.hypotheses import assert_same
from tests.language_models import PROMPTS, language_model
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule

EOS = 2
FEW = "seqgen.addons.catalogue.constraint._FEW"
SEQUENCES = [(4, 5, EOS), (4, EOS), (4, 5, 6, EOS), (3, EOS), (3, EOS)]
VOCAB = 9
WORDS = dictionary(VOCAB - 4)


def outputs(draw: random.Random, count: int, longest: int = 4) -> list[tuple[int, ...]]:
    """Some allowed outputs, many of which have the same beginning, each once."""
    found = {tuple(draw.choices(range(3, VOCAB), k=draw.randint(1, longest))) for _ in range(count)}
    return [(*tokens, EOS) for tokens in sorted(found)]


def paths(trie: PrefixTrie) -> list[tuple[int, ...]]:
    """All sequences of a trie from the root to nodes without children, depth first."""

    def below(prefix: tuple[int, ...]) -> list[tuple[int, ...]]:
        following = trie.following(prefix)
        return [path for token in following for path in below((*prefix, token))] if following else [prefix]

    return below(())


@pytest.mark.parametrize("longest", [1, 3, 30])
def test_a_trie_has_each_sequence_once(longest: int) -> None:
    draw = random.Random(longest)
    for count in (0, 1, 2, 7, 60):
        lines = [tuple(draw.choices(range(draw.choice([2, 50])), k=draw.randint(1, longest))) for _ in range(count)]
        ended = [(*line, 50) for line in lines]
        trie = PrefixTrie.of(ended)
        assert paths(trie) == (sorted(set(ended)) or [()])
        assert trie.longest == max(map(len, ended), default=0)
        for line in lines[:2]:
            assert trie.following((*line, 51)) == trie.following((*line, 50, 50)) == []


def test_a_file_has_the_same_trie_and_no_bit_of_it_may_change(tmp_path: Path) -> None:
    path, trie = tmp_path / "a.safetensors", PrefixTrie.of(SEQUENCES)
    trie.save(path)
    assert paths(PrefixTrie.load(path, 7)) == paths(trie) == sorted(set(SEQUENCES))
    content = path.read_bytes()
    for place in range(8 + int.from_bytes(content[:8], "little"), len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(DataError):
            PrefixTrie.load(path, VOCAB)


def test_lines_are_texts_or_ids(tmp_path: Path) -> None:
    for name, content in (("outputs", "w0 w1\nw2\n\n"), ("outputs.ids", "4 5\n6\n\n")):
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert paths(trie_of_file(tmp_path / name, resources(WORDS))) == [(EOS,), (4, 5, EOS), (6, EOS)]


def test_a_converted_trie_decodes_as_its_text_does(data: Path, runs: Path, tmp_path: Path) -> None:
    text, trie = tmp_path / "allowed", tmp_path / "allowed.safetensors"
    text.write_text("der Hund\nder Hund sieht\neinen\n", encoding="utf-8")
    done("convert", "format=trie", f"path={runs}/fconv", f"input={text}", f"output={trie}")
    keys = ("input=-", "format=json", "generation.beam=3", "generation.nbest=3", "generation.certificate=true")
    found = [
        command("generate", f"path={runs}/fconv", *keys, f"generation.allowed_outputs={file}", stdin=b"the dog\n")
        for file in (text, trie)
    ]
    assert found[0].out == found[1].out
    record = json.loads(found[0].out)
    assert sorted(item["text"] for item in record["hypotheses"]) == ["der Hund", "der Hund sieht", "einen"]
    assert (record["exact"], record["bound"]) == (True, None)


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
@pytest.mark.parametrize("search", ["beam", "greedy", "sampling", "diverse_beam"])
def test_a_trie_equals_a_function_and_all_scores(search: str, semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEW, 1)  # in a small vocabulary, allowed tokens are never few
    draw = random.Random(search)
    beam, narrows = 1 if search == "greedy" else 4, (search, semantics) != ("diverse_beam", "huggingface")
    further = {"sampling": True} if search == "sampling" else {"search": search}
    own = {"components": {"search.groups": 2, "search.strength": 0.3}} if search == "diverse_beam" else {}
    cfg = GenerationConfig(beam=beam, nbest=1, max_len_b=7, semantics=semantics, top_tokens=4, **further, **own)
    for seed in range(2):
        lines = outputs(draw, 30)

        def follows(sentence: int, tokens: Tensor, lines: Sequence[tuple[int, ...]] = lines) -> list[int]:
            own = tuple(tokens.tolist())[semantics == "huggingface" :]
            return [line[len(own)] for line in lines if line[: len(own)] == own and len(line) > len(own)]

        def decode(processor: Any, seed: int = seed, **fast: Any) -> tuple[list[list[Hypothesis]], set[bool]]:
            model, spy = ScriptedModel(random_rule(VOCAB, seed)), Narrowed()
            objects: dict[str, Any] = {"processors": [processor], "observers": [spy], "fast": FastConfig(**fast)}
            setup = build_setup([model], WORDS, cfg, **objects)
            return SequenceGenerator(setup).generate(batch_of([[4, 5, EOS], [EOS], [3, 7, 7, EOS]])), spy.seen

        wanted, _ = decode(PrefixConstraint(follows))
        assert all(tuple(one.tokens.tolist()) in lines for hypotheses in wanted for one in hypotheses)
        for fast in ({}, {"narrowed_scores": False}, {"skip_log_softmax": False}):
            found, narrowed = decode(TrieConstraint(PrefixTrie.of(lines)), **fast)
            assert_same(found, wanted, 1e-9)
            assert narrowed == {narrows and fast.get("narrowed_scores", True)}


class Narrowed(Observer):
    """Whether the search gets the scores of some tokens alone."""

    def __init__(self) -> None:
        self.seen: set[bool] = set()

    def observe(self, record: StepRecord) -> None:
        self.seen.add(record.scored.tokens is not None)


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_a_function_gets_prompts_of_unequal_length_without_padding(semantics: str) -> None:
    model, seen = language_model(seed=3), set()

    def allowed(sentence: int, tokens: Tensor) -> Sequence[int]:
        seen.add((sentence, tuple(tokens.tolist())))
        return range(EOS, 10)

    keys = {"beam": 2, "max_len": 3, "semantics": semantics}
    found = Translator(model).translate(PROMPTS, processors=[PrefixConstraint(allowed)], **keys)
    start = [EOS] if semantics == "huggingface" else []
    prompts = [start + model.task.prompt(model.task.encode_source(text)).tolist() for text in PROMPTS]
    for number, tokens in seen:
        assert list(tokens[: len(prompts[number])]) == prompts[number]
    for number, translation in enumerate(found):  # what leads to the last token was given
        assert (number, (*prompts[number], *translation.hypotheses[0].tokens[:-1].tolist())) in seen


def best(scores: Rule, lines: Sequence[tuple[int, ...]], source: Any, ranking: Ranking) -> Any:
    """All allowed outputs with their scores by enumeration, best first."""
    found = []
    for line in lines:
        steps = [scores(source, line[:step])[token] for step, token in enumerate(line)]
        found.append((line, float(ranking.score(torch.stack(steps).sum(), len(line)))))
    return sorted((pair for pair in found if pair[1] > -torch.inf), key=lambda pair: -pair[1])


def lprobs_of(rule: Rule) -> Rule:
    return lambda source, history: rule(source, history).log_softmax(0)


def random_ensemble(draw: random.Random, rules: Sequence[Rule]) -> tuple[Rule, dict[str, Any]]:
    """The scores of a random certifiable ensemble of two models, and its settings."""
    first, second = map(lprobs_of, rules)
    weight = draw.choice([0.3, 1.0])

    def fusion(source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        return first(source, history) + weight * second(source, history)

    def guidance(source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        one, other = (torch.logaddexp(first(read, history), second(read, history)) for read in (source, (EOS,)))
        return (0.4 * one + 0.6 * other) - math.log(2)

    fused = {"combination": "fusion", "components": {"combination.weight": weight}}
    return draw.choice([(fusion, fused), (guidance, {"guidance_scale": 0.4})])


def possible(outputs: Sequence[tuple[int, ...]], limit: int, semantics: str) -> list[tuple[int, ...]]:
    """The outputs of at most ``limit`` tokens, and by Hugging Face's rules the others, which are cut."""
    kept = (line[:limit] for line in outputs if len(line) <= limit or semantics == "huggingface")
    return list(dict.fromkeys(kept))


def certificates_of(setup: DecodingSetup) -> list[Certificate]:
    return [one for one in setup.observers if isinstance(one, Certificate)]


def certified(seed: int) -> list[bool]:
    """A random search; raises if a certificate is wrong. Returns for each n-best list whether it is certified."""
    draw = random.Random(seed)
    lines = outputs(draw, draw.choice([1, 4, 40]))
    sharpness = draw.choice([0.3, 1.5, 4.0])
    rules = [random_rule(VOCAB, seed, sharpness), random_rule(VOCAB, -seed, sharpness)][: draw.choice([1, 1, 2])]
    scores, keys = (lprobs_of(rules[0]), {}) if len(rules) == 1 else random_ensemble(draw, rules)
    length_penalty, beam = draw.choice([-0.5, 0.0, 1.0, 6.0]), draw.choice([1, 2, 3, 6])
    keys |= {"search": "beam", "beam": beam, "nbest": draw.randint(1, beam), "length_penalty": length_penalty}
    limit = draw.choice([1, 2, 3, 60])  # below and above the longest allowed output
    semantics = draw.choice(["fairseq", "huggingface"])
    cfg = GenerationConfig(max_len_b=limit, semantics=semantics, certificate=True, **keys)
    if semantics == "huggingface":
        cfg.early_stopping = draw.choice(["true", "false", "never"])
    trie = TrieConstraint(PrefixTrie.of(lines))
    generator = SequenceGenerator(build_setup(list(map(ScriptedModel, rules)), WORDS, cfg, processors=[trie]))
    (certificate,), results = certificates_of(generator.setup), []
    for number, got in enumerate(generator.generate(batch_of([[4, EOS], [EOS]]))):
        allowed = possible(lines, limit + 1, semantics)
        wanted = best(scores, allowed, [(4, EOS), (EOS,)][number], Ranking(len_penalty=length_penalty))
        bound, exact = certificate.found[number]
        found = [tuple(one.tokens.tolist()) for one in got]
        pruned = max((score for line, score in wanted if line not in found), default=-torch.inf)
        # a hypothesis that a better one has replaced is no better than the last of the list
        last = got[-1].score if len(got) == beam else -torch.inf
        assert pruned <= max(bound, last) + 1e-6, (seed, number, bound, pruned)
        if exact:
            count = min(cfg.nbest, len(wanted))
            assert found[:count] == [line for line, _ in wanted[:count]], (seed, number)
            assert [one.score for one in got[:count]] == pytest.approx([score for _, score in wanted[:count]], abs=1e-5)
        results.append(exact)
    assert certificate.summary() == f"{sum(results)} of 2 n-best lists are certified to be exact"
    return results


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(1000, 11_000), marks=pytest.mark.nightly)], ids=len)
def test_a_certificate_is_never_wrong(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEW, 2)
    results = list(itertools.chain.from_iterable(map(certified, seeds)))
    assert 0.2 < sum(results) / len(results) < 0.9  # both happen often


@pytest.mark.parametrize(
    "keys",
    [
        {"unkpen": 1.0, "sequence_bias": ["w4=-1"], "bad_words": ["w2 w3"], "suppress": ["w1"]},
        {"combination": "log", "guidance_scale": 0.5},
    ],
)
def test_what_declares_that_no_score_rises_is_certifiable(keys: dict[str, Any]) -> None:
    models = [ScriptedModel(random_rule(VOCAB, seed)) for seed in (1, 2)]
    cfg = GenerationConfig(beam=4, certificate=True, **keys)
    assert certificates_of(build_setup(models, WORDS, cfg))
