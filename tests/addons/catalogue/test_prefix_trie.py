"""Search among allowed outputs: the trie and its file, the scores of allowed tokens alone, and certificates."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from seqgen.addons.catalogue.certificate import Certificate
from seqgen.addons.catalogue.constraint import TrieConstraint, trie_of_file
from seqgen.addons.catalogue.prefix_trie import NOWHERE, PrefixTrie
from seqgen.config import FastConfig, GenerationConfig
from seqgen.config.settings import Settings
from seqgen.core.beam_search import BeamSearch
from seqgen.core.candidates import Candidates
from seqgen.core.combinations import ProbabilityMean
from seqgen.core.context import StepContext
from seqgen.core.errors import ConfigError, DataError
from seqgen.core.finished import Ranking
from seqgen.core.observers import Observer, StepRecord
from seqgen.core.scores import Scores
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.setup import DecodingSetup
from seqgen.decoding.combinations import Guidance
from seqgen.decoding.options import build_setup
from seqgen.decoding.processors.tokens import Forbid, PrefixConstraint
from seqgen.decoding.resolution import resolve
from seqgen.text.translator import Translator
from tests.generation import test_processors as processors, test_top_tokens as top_tokens
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


class TestTheTrie:
    def test_by_hand(self) -> None:
        trie = PrefixTrie.of([(7, 8), (7, 9), (8,)])
        assert trie.tokens.tolist() == [-1, 7, 8, 8, 9]
        assert trie.first.tolist() == [1, 3, 5, 5, 5, 5]
        assert trie.child(torch.tensor([0, 0, 1, 1, 2, NOWHERE]), torch.tensor([7, 9, 8, 7, 8, 7])).tolist() == [
            1, NOWHERE, 3, NOWHERE, NOWHERE, NOWHERE,
        ]  # fmt: skip
        rows, children = trie.edges(torch.tensor([1, 2, NOWHERE, 0]))
        assert rows.tolist() == [0, 0, 3, 3]
        assert children.tolist() == [3, 4, 1, 2]

    @pytest.mark.parametrize("longest", [1, 3, 30])
    def test_has_each_sequence_once(self, longest: int) -> None:
        draw = random.Random(longest)
        for count in (0, 1, 2, 7, 60):
            lines = [tuple(draw.choices(range(draw.choice([2, 50])), k=draw.randint(1, longest))) for _ in range(count)]
            ended = [(*line, 50) for line in lines]
            trie = PrefixTrie.of(ended)
            assert paths(trie) == (sorted(set(ended)) or [()])
            assert trie.longest == max(map(len, ended), default=0)

    def test_a_file_has_the_same_arrays(self, tmp_path: Path) -> None:
        trie = PrefixTrie.of(SEQUENCES)
        trie.save(tmp_path / "a.safetensors")
        again = PrefixTrie.load(tmp_path / "a.safetensors", 7)
        for name in ("tokens", "first"):
            assert torch.equal(getattr(trie, name), getattr(again, name))

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"first": torch.tensor([1, 3, 3, 5, 5, 5], dtype=torch.int32)}, "do not fit"),
            ({"tokens": torch.tensor([-1, 3, 4, 2, 2, 5, 7, 2, 2])}, "do not fit"),
            ({"first": torch.tensor([1, 3, 2, 6, 6, 6, 8, 9, 9, 9], dtype=torch.int32)}, "a node has a child twice"),
            ({"tokens": torch.tensor([-1, 3, 4, 2, 2, 5, 2, 8, 2], dtype=torch.int32)}, "not in the target vocabulary"),
            ({"more": torch.zeros(3)}, "is damaged"),
            ({"tokens": torch.tensor([-1, 4, 3, 2, 2, 5, 2, 6, 2], dtype=torch.int32)}, "not in ascending order"),
            ({"tokens": torch.tensor([-1, 3, 4, 2, 2, 5, 2, 7, 2], dtype=torch.int32)}, "checksum"),
        ],
    )
    def test_a_damaged_file_is_refused(self, change: dict[str, Tensor], words: str, tmp_path: Path) -> None:
        path = tmp_path / "a.safetensors"
        PrefixTrie.of(SEQUENCES).save(path)
        arrays = load_file(path)
        assert len(arrays["tokens"]) == 9
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        save_file({**arrays, **change}, path, metadata)
        with pytest.raises(DataError, match=words):
            PrefixTrie.load(path, 8)

    def test_a_file_for_another_vocabulary_is_refused(self, tmp_path: Path) -> None:
        PrefixTrie.of(SEQUENCES).save(tmp_path / "a.safetensors")
        with pytest.raises(DataError, match="not in the target vocabulary of 5"):
            PrefixTrie.load(tmp_path / "a.safetensors", 5)

    def test_a_flipped_bit_is_refused(self, tmp_path: Path) -> None:
        path, trie = tmp_path / "a.safetensors", PrefixTrie.of(SEQUENCES)
        trie.save(path)
        content = path.read_bytes()
        for place in range(8 + int.from_bytes(content[:8], "little"), len(content)):
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            with pytest.raises(DataError):
                PrefixTrie.load(path, VOCAB)

    def test_other_files_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "a.safetensors"
        save_file({"tokens": torch.zeros(1)}, path)
        with pytest.raises(DataError, match="is not a trie"):
            PrefixTrie.load(path, 8)
        path.write_bytes(b"x" * 100)
        with pytest.raises(DataError, match="is damaged"):
            PrefixTrie.load(path, 8)


class TestFiles:
    def read(self, tmp_path: Path, content: str, name: str = "outputs") -> PrefixTrie:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return trie_of_file(tmp_path / name, resources(WORDS))

    def test_text_and_ids(self, tmp_path: Path) -> None:
        word = [WORDS.symbol(token) for token in range(VOCAB)]
        text = self.read(tmp_path, f"{word[4]} {word[5]}\n{word[6]}\n\n")
        assert paths(text) == [(EOS,), (4, 5, EOS), (6, EOS)]
        assert paths(self.read(tmp_path, "4 5\n6\n\n", "outputs.ids")) == paths(text)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("", "is empty"),
            (f"4\n{len(WORDS)}\n", f"line 2: each word must be the id of a token, from 0 to {len(WORDS) - 1}"),
            ("4\n5 x\n", "line 2: each word must be"),
            ("4\n5\t1\n", "line 2 has a tab"),
        ],
    )
    def test_mistakes_are_named_by_their_line(self, content: str, words: str, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=words):
            self.read(tmp_path, content, "outputs.ids")

    def test_a_word_that_the_vocabulary_lacks_is_named_by_its_line(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="line 2 has words or characters"):
            self.read(tmp_path, "w1\nnothere\n")


class TestTheConstraint:
    @pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
    @pytest.mark.parametrize("search", ["beam", "greedy", "sampling", "diverse_beam"])
    def test_equals_a_function_and_all_scores(
        self, search: str, semantics: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(FEW, 1)  # in a small vocabulary, allowed tokens are never few
        draw = random.Random(search)
        beam = 1 if search == "greedy" else 4
        further = {"sampling": True} if search == "sampling" else {"search": search}
        own = {"components": {"search.groups": 2, "search.strength": 0.3}} if search == "diverse_beam" else {}
        cfg = GenerationConfig(beam=beam, nbest=1, max_len_b=7, semantics=semantics, **further, **own)
        for seed in range(3):
            lines = outputs(draw, 30)
            model = ScriptedModel(random_rule(VOCAB, seed))

            def follows(sentence: int, tokens: Tensor, lines: Sequence[tuple[int, ...]] = lines) -> list[int]:
                own = tuple(tokens.tolist())[semantics == "huggingface" :]
                return [line[len(own)] for line in lines if line[: len(own)] == own and len(line) > len(own)]

            def decode(processor: Any, fast: FastConfig, model: ScriptedModel = model) -> list[Any]:
                generator = SequenceGenerator(build_setup([model], WORDS, cfg, processors=[processor], fast=fast))
                return [
                    [(tuple(one.tokens.tolist()), pytest.approx(one.score, abs=1e-9)) for one in hypotheses]
                    for hypotheses in generator.generate(batch_of([[4, 5, EOS], [EOS], [3, 7, 7, EOS]]))
                ]

            wanted = decode(PrefixConstraint(follows), FastConfig())
            assert all(tokens in lines for hypotheses in wanted for tokens, _ in hypotheses)
            for fast in (FastConfig(), FastConfig(narrowed_scores=False), FastConfig(skip_log_softmax=False)):
                assert decode(TrieConstraint(PrefixTrie.of(lines)), fast) == wanted


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
    return sorted(found, key=lambda pair: -pair[1])


def lprobs_of(rule: Rule) -> Rule:
    return lambda source, history: rule(source, history).log_softmax(0)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_wide_beam_equals_enumeration(length_penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEW, 2)
    draw = random.Random(7)
    for seed in range(4):
        lines = outputs(draw, 25)
        rule, count = random_rule(VOCAB, seed), len(lines)
        cfg = GenerationConfig(beam=count, nbest=count, max_len_b=7, search="beam", length_penalty=length_penalty)
        trie = TrieConstraint(PrefixTrie.of(lines))
        generator = SequenceGenerator(build_setup([ScriptedModel(rule)], WORDS, cfg, processors=[trie]))
        for source, got in zip([(4, EOS), (EOS,)], generator.generate(batch_of([[4, EOS], [EOS]])), strict=True):
            wanted = best(lprobs_of(rule), lines, source, Ranking(len_penalty=length_penalty))
            assert [tuple(one.tokens.tolist()) for one in got] == [line for line, _ in wanted]
            assert [one.score for one in got] == pytest.approx([score for _, score in wanted], abs=1e-5)


def random_ensemble(draw: random.Random, rules: Sequence[Rule]) -> tuple[Rule, dict[str, Any]]:
    """The scores of a random certifiable ensemble of two models, and its settings."""
    first, second = map(lprobs_of, rules)
    weight = draw.choice([0.3, 1.0])

    def fusion(source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        return first(source, history) + weight * second(source, history)

    def guidance(source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        one, other = (torch.logaddexp(first(read, history), second(read, history)) for read in (source, (EOS,)))
        return (0.4 * one + 0.6 * other) - math.log(2)

    scores, keys = draw.choice([
        (fusion, {"combination": "fusion", "components": {"combination.weight": weight}}),
        (guidance, {"guidance_scale": 0.4}),
    ])  # fmt: skip
    return scores, keys


def possible(outputs: Sequence[tuple[int, ...]], limit: int, semantics: str) -> list[tuple[int, ...]]:
    """The outputs of at most ``limit`` tokens, and by Hugging Face's rules the others, which are cut."""
    kept = (line[:limit] for line in outputs if len(line) <= limit or semantics == "huggingface")
    return list(dict.fromkeys(kept))


def certificate_of(setup: DecodingSetup) -> Certificate | None:
    return next((one for one in setup.observers if isinstance(one, Certificate)), None)


def certified(seed: int) -> list[bool]:
    """A random search; raises if a certificate is wrong. Returns for each n-best list whether it is certified."""
    draw = random.Random(seed)
    lines = outputs(draw, draw.choice([1, 4, 40]))
    sharpness = draw.choice([0.3, 1.5, 4.0])
    rules = [random_rule(VOCAB, seed, sharpness), random_rule(VOCAB, -seed, sharpness)][: draw.choice([1, 1, 2])]
    scores, keys = (lprobs_of(rules[0]), {}) if len(rules) == 1 else random_ensemble(draw, rules)
    length_penalty, beam = draw.choice([-0.5, 0.0, 1.0, 6.0]), draw.choice([1, 2, 3, 6])
    cfg = GenerationConfig(
        beam=beam,
        nbest=draw.randint(1, beam),
        max_len_b=draw.choice([1, 2, 3, 60]),  # below and above the longest allowed output
        length_penalty=length_penalty,
        search="beam",
        semantics=draw.choice(["fairseq", "huggingface"]),
        certificate=True,
        **keys,
    )
    if cfg.semantics == "huggingface":
        cfg.early_stopping = draw.choice(["true", "false", "never"])
    trie = TrieConstraint(PrefixTrie.of(lines))
    generator = SequenceGenerator(build_setup(list(map(ScriptedModel, rules)), WORDS, cfg, processors=[trie]))
    certificate = certificate_of(generator.setup)
    assert certificate is not None
    results = []
    for number, got in enumerate(generator.generate(batch_of([[4, EOS], [EOS]]))):
        allowed = possible(lines, cfg.max_len_b + 1, cfg.semantics)
        ranking = Ranking(len_penalty=length_penalty)
        wanted = best(scores, allowed, [(4, EOS), (EOS,)][number], ranking)
        wanted = [(line, score) for line, score in wanted if score > -torch.inf]
        bound, exact = certificate.found[number]
        found = [tuple(one.tokens.tolist()) for one in got]
        pruned = [score for line, score in wanted if line not in found]
        if pruned:
            # a hypothesis that a better one has replaced is no better than the last of the list
            last = got[-1].score if len(got) == beam else -torch.inf
            assert max(pruned) <= max(bound, last) + 1e-6, (seed, number, bound, pruned)
        if exact:
            count = min(cfg.nbest, len(wanted))
            assert found[:count] == [line for line, _ in wanted[:count]], (seed, number)
        results.append(exact)
    assert certificate.summary() == f"{sum(results)} of 2 n-best lists are certified to be exact"
    return results


def test_a_certificate_is_never_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEW, 2)
    results = list(itertools.chain.from_iterable(certified(seed) for seed in range(150)))
    assert 0.2 < sum(results) / len(results) < 0.9  # both happen often


@pytest.mark.nightly
def test_ten_thousand_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEW, 2)
    for seed in range(10_000):
        certified(1000 + seed)


class OwnForbid(Forbid):
    """A subclass that overrides the method which the declaration is about."""

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        return super().__call__(lprobs, context) + 1.0


class OwnMean(ProbabilityMean):
    def mean(self, weighted: Sequence[tuple[float, Tensor]]) -> Tensor:
        return super().mean(weighted) + 1.0


class OwnSearch(BeamSearch):
    def step(self, context: StepContext, scores: Scores) -> Candidates:
        lprobs, so_far = scores.lprobs(), scores.beams
        return super().step(context, Scores(lprobs[..., :5], so_far))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"search": "diverse_beam", "components": {"search.groups": 2}}, "not DiverseBeamSearch"),
        ({"guidance_scale": 2.0}, "which Guidance does not guarantee"),
        ({"combination": "fusion", "components": {"combination.weight": -0.5}}, "which Fusion does not guarantee"),
        ({"unkpen": -1.0}, "UnknownPenalty"),
        ({"sequence_bias": ["w4=-1", "w3=0.5"]}, "SequenceBias"),
        ({"processors": [OwnForbid([4])]}, "OwnForbid"),
        ({"combination": OwnMean()}, "OwnMean"),
        ({"search": OwnSearch()}, "not OwnSearch"),
        ({"repetition_penalty": 1.2}, "RepetitionPenalty"),
        ({"max_time": 3.0}, "TimeLimit"),
        ({"coverage_penalty": 0.2}, "coverage_penalty"),
        ({"mbr": "chrf"}, "certifies the order of scores"),
    ],
)
def test_what_a_certificate_cannot_cover_is_refused(keys: dict[str, Any], words: str) -> None:
    def build() -> None:
        given = resolve(Settings().with_layer("user", {"beam": 4, "certificate": True, **keys}))
        arguments = {"search_strategy" if key == "search" else key: value for key, value in given.objects.items()}
        models = [ScriptedModel(random_rule(VOCAB, seed)) for seed in (1, 2)]
        SequenceGenerator(build_setup(models, WORDS, given.generation, **arguments))

    with pytest.raises(ConfigError, match=words):
        build()


@pytest.mark.parametrize(
    "keys",
    [
        {"unkpen": 1.0, "sequence_bias": ["w4=-1"], "bad_words": ["w2 w3"], "suppress": ["w1"]},
        {"combination": "log", "guidance_scale": 0.5},
        {"combination": "fusion"},
    ],
)
def test_what_declares_that_no_score_rises_is_certifiable(keys: dict[str, Any]) -> None:
    models = [ScriptedModel(random_rule(VOCAB, seed)) for seed in (1, 2)]
    cfg = GenerationConfig(beam=4, certificate=True, **keys)
    assert certificate_of(build_setup(models, WORDS, cfg)) is not None


def test_a_composite_with_a_call_of_its_own_is_not_certifiable() -> None:
    made = Guidance(ProbabilityMean(), 0.5)
    made_by_user = type("Own", (Guidance,), {"__call__": Guidance.__call__})(made.parts[0], made.scale)
    assert (made.certifiable, made_by_user.certifiable) == (True, False)


class Narrowed(Observer):
    """Whether the search gets the scores of some tokens alone."""

    def __init__(self) -> None:
        self.seen: set[bool] = set()

    def observe(self, record: StepRecord) -> None:
        self.seen.add(record.scored.tokens is not None)


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_allowed_tokens_keep_their_ids(semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search gets the scores of the allowed tokens alone, of which there may be fewer than are listed."""
    monkeypatch.setattr("seqgen.addons.catalogue.constraint._FEW", 1)  # in a small vocabulary there are never few
    trie = PrefixTrie.of([(4, 5, 2), (4, 6, 8, 2), (7, 2), (7, 7, 7, 2)])
    cfg = GenerationConfig(beam=3, max_len_b=6, semantics=semantics, top_tokens=4)
    found = []
    for edges in (True, False):
        fast, spy = FastConfig(narrowed_scores=edges), Narrowed()
        setup = build_setup(
            top_tokens.models(),
            dictionary(top_tokens.WORDS),
            cfg,
            processors=[TrieConstraint(trie)],
            fast=fast,
            observers=[spy],
        )
        found.append(SequenceGenerator(setup).generate(batch_of(top_tokens.SOURCES)))
        assert spy.seen == {edges}
    assert_same(*found)
    tokens, scores = found[0][0][0].top_tokens, found[0][0][0].top_scores
    assert tokens is not None
    assert scores is not None
    assert {*tokens[0, :2].tolist()} == {4, 7}
    assert scores.isfinite()[0].tolist() == [True, True, False, False]


def test_the_trie_is_a_sound_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    trie = TrieConstraint(PrefixTrie.of([(4, 5, EOS), (4, EOS), (3, EOS)]))
    monkeypatch.setitem(processors.PROCESSORS, "trie", trie.begin(processors.batch_info(6, 1)))
    processors.test_shift_invariance_is_as_declared("trie")
    processors.test_no_nan_and_nothing_forbidden_comes_back(name="trie")
    for dtype in (torch.bfloat16, torch.float16):
        processors.test_every_dtype("trie", dtype)
