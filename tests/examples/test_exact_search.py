"""examples/papers/exact_search/exact.py against the enumeration of all outputs, beam search, and itself."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from examples.papers.exact_search.exact import ExactSearch
from seqgen.core.errors import ConfigError, DecodingError
from seqgen.core.finished import Ranking
from seqgen.core.observers import Observer
from seqgen.core.processors import LogitsProcessor
from tests.generators import make_generator
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.reference_search import EOS, Settings, next_scores
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule, table_rule

pytestmark = pytest.mark.slow

SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]


def everything(rule: Rule, source: tuple[int, ...], cfg: Settings, ranking: Ranking) -> Pairs:
    """All outputs by fairseq's rules, best first."""
    found: Pairs = []
    running: Pairs = [((), 0.0)]
    while running:
        history, total = running.pop()
        for token, score in enumerate(next_scores(rule, source, history, cfg)):
            if score == -math.inf:
                continue
            if token == EOS:
                value = float(ranking.score(torch.tensor(total + score, dtype=torch.float64), len(history) + 1))
                found.append(((*history, token), value))
            else:
                running.append(((*history, token), total + score))
    return sorted(found, key=lambda pair: -pair[1])


def generator(models: list[ScriptedModel], words: int, search: ExactSearch | None = None, **options: object):
    return make_generator(models, dictionary(words), search_strategy=search or ExactSearch(at_once=4), **options)


@pytest.mark.parametrize("at_once", [1, 3, 50])
@pytest.mark.parametrize(
    "settings",
    [
        Settings(beam=1, normalize=False, max_len=5),
        Settings(beam=3, max_len=4),
        Settings(beam=1, length_penalty=2.0, max_len=5),
        Settings(beam=4, length_penalty=0.3, max_len=4),
        Settings(beam=2, length_penalty=-1.0, max_len=4),
        Settings(beam=2, length_penalty=0.0, temperature=2.0, max_len=3),
        Settings(beam=3, min_len=3, max_len=4, unkpen=2.0),
        Settings(beam=3, no_repeat_ngram=1, max_len=5),
        Settings(beam=3, no_repeat_ngram=2, max_len=4),
        Settings(beam=3, prefix=(5, 4), max_len=5),
        Settings(beam=3, prefix=(4, 4, 4), max_len=3),
        Settings(beam=500, max_len=2),
        Settings(beam=3, max_len=0, min_len=0),
    ],
    ids=str,
)
def test_equals_enumeration(settings: Settings, at_once: int) -> None:
    rule = random_rule(vocab=6, seed=settings.beam, sharpness=2.0)
    ranking = Ranking(settings.normalize, settings.length_penalty)
    results = generator(
        [ScriptedModel(rule)],
        2,
        ExactSearch(at_once=at_once),
        **settings.arguments(),
        max_len_b=settings.max_len,
    ).generate(batch_of(SOURCES), prefix_tokens=settings.prefixes(len(SOURCES)))
    for source, hypotheses in zip(SOURCES, results, strict=True):
        wanted = everything(rule, source, settings, ranking)
        assert_same_pairs(as_pairs(hypotheses), wanted[: settings.beam])


def test_wu_penalty_and_huggingface_rules() -> None:
    """By Hugging Face's rules an output may also end without end-of-sentence, at the maximum length."""
    rule, longest = random_rule(vocab=6, seed=3), 3
    found = generator(
        [ScriptedModel(rule)],
        2,
        beam_size=4,
        max_len_b=longest,
        min_len=0,
        len_penalty=1.4,
        length_penalty_form="wu",
        semantics="huggingface",
    ).generate(batch_of(SOURCES[:1]))[0]
    wanted: Pairs = []
    for length in range(longest + 2):
        for tokens in itertools.product(range(6), repeat=length):
            if EOS in tokens[:-1] or not tokens or (tokens[-1] != EOS and length <= longest):
                continue
            steps = [float(rule(SOURCES[0], tokens[:i]).log_softmax(-1)[token]) for i, token in enumerate(tokens)]
            wanted.append((tokens, sum(steps) / ((5 + length) / 6) ** 1.4))
    assert_same_pairs(as_pairs(found), sorted(wanted, key=lambda pair: -pair[1])[:4])


def test_finds_what_a_narrow_beam_misses_and_prunes_most() -> None:
    """Greedy takes w0; the one sentence of probability .36 begins with w1, and few prefixes need be looked at."""
    table = {(): {4: 0.6, 5: 0.4}, (4,): {4: 0.4, 5: 0.3, EOS: 0.3}, (5,): {EOS: 0.9, 4: 0.1}}
    model = ScriptedModel(table_rule(table, vocab=6))
    options = {"beam_size": 1, "normalize_scores": False, "max_len_b": 8}
    found = generator([model], 2, ExactSearch(expansions=4, at_once=1), **options).generate(batch_of([(4, 2)]))[0]
    assert_same_pairs(as_pairs(found), [((5, EOS), math.log(0.36))])
    assert found[0].positional_scores.tolist() == pytest.approx([math.log(0.4), math.log(0.9)])


def test_guided_ensemble() -> None:
    rules = [random_rule(vocab=6, seed=seed) for seed in (1, 2)]

    def mean(source: tuple[int, ...], history: tuple[int, ...]) -> torch.Tensor:
        return torch.stack([rule(source, history).softmax(-1) for rule in rules]).mean(0).log()

    def guided(source: tuple[int, ...], history: tuple[int, ...]) -> torch.Tensor:
        full, empty = mean(source, history), mean(source[-1:], history)
        return (empty + 1.5 * (full - empty)).log_softmax(-1)

    options = {"max_len_b": 3, "processors": [Renormalized()]}
    models = [ScriptedModel(rule) for rule in rules]
    found = generator(models, 2, beam_size=3, guidance_scale=1.5, **options).generate(batch_of(SOURCES))
    plain = make_generator([ScriptedModel(guided)], dictionary(2), beam_size=130, **options)
    for one, two in zip(found, plain.generate(batch_of(SOURCES)), strict=True):
        assert_same_pairs(as_pairs(one), as_pairs(two)[:3])


class Renormalized(LogitsProcessor):
    def __call__(self, lprobs: torch.Tensor, context: object) -> torch.Tensor:
        return lprobs.log_softmax(-1)


def test_no_possible_output() -> None:
    model = ScriptedModel(random_rule(vocab=7, seed=1))
    words = ["<s>", "</s>", "<unk>", "w0", "w1", "w2"]
    forbidden = generator([model], 3, tokens_to_suppress=words, beam_size=2, max_len_b=4)
    assert forbidden.generate(batch_of([(4, 2), (2,)])) == [[], []]


def test_what_it_cannot_do_is_said() -> None:
    model, batch = ScriptedModel(random_rule(vocab=7, seed=1, sharpness=0.1)), batch_of(SOURCES)
    with pytest.raises(DecodingError, match="sentence 0 of the batch has scored 50 prefixes"):
        generator([model], 3, ExactSearch(expansions=50), max_len_b=9).generate(batch)
    with pytest.raises(DecodingError, match="cumulative scores that only fall"):
        generator([model], 3, unk_penalty=-5.0).generate(batch)
    with pytest.raises(ConfigError, match="cannot be streamed"):
        generator([model], 3).generate(batch, observers=[Observer()])
    with pytest.raises(ConfigError, match=r"no steps that an observer \(Observer\)"):
        generator([model], 3, observers=[Observer()]).generate(batch)
