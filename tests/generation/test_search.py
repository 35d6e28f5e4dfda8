"""The generator against hand-written tables, a plain reference search, exhaustive search, and itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from seqgen.core.beam_search import Greedy
from seqgen.core.scores import Scores
from seqgen.core.search import Search
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.decoding.processors.tokens import RepetitionPenalty
from seqgen.decoding.search.diverse import DiverseBeamSearch
from seqgen.decoding.search.sampling import Sampling
from tests.generators import make_generator
from tests.hypotheses import as_pairs, assert_same_pairs
from tests.model_zoo import VOCAB, build
from tests.reference_search import EOS, Settings, beam_search
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule, table_rule
from tests.step_contexts import step_context

A, B = 4, 5
SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]


def generator(models: list[ScriptedModel], words: int, **options: object) -> SequenceGenerator:
    return make_generator(models, dictionary(words), **options)


def test_hand_written_table() -> None:
    """Greedy takes A, the likelier first token; two beams find that B leads to the likelier sentence."""
    table = {
        (): {A: 0.6, B: 0.4},
        (A,): {A: 0.4, B: 0.3, EOS: 0.3},
        (B,): {EOS: 0.9, A: 0.1},
        (A, A): {EOS: 0.5, A: 0.5},
        (A, B): {EOS: 1.0},
        (B, A): {EOS: 1.0},
        (A, A, A): {EOS: 1.0},
    }
    model = ScriptedModel(table_rule(table, vocab=6))
    greedy = generator([model], 2, beam_size=1, normalize_scores=False).generate(batch_of([(4, 2)]))[0]
    assert_same_pairs(as_pairs(greedy), [((A, A, EOS), math.log(0.6 * 0.4 * 0.5))])
    wide = generator([model], 2, beam_size=2, normalize_scores=False).generate(batch_of([(4, 2)]))[0]
    # step 1: B </s> .36 and A A .24 lead A B .18, A </s> .18; step 2: A A </s> .12, A A A .12, A B </s> .18
    assert_same_pairs(as_pairs(wide), [((B, EOS), math.log(0.36)), ((A, B, EOS), math.log(0.18))])
    assert wide[0].positional_scores.tolist() == pytest.approx([math.log(0.4), math.log(0.9)])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(beam=1),
        Settings(beam=5, length_penalty=0.3),
        Settings(beam=4, normalize=False, unkpen=-1.0),
        Settings(beam=3, unkpen=2.0, temperature=1.7),
        Settings(beam=3, min_len=4, max_len=5),
        Settings(beam=3, min_len=4, max_len=2),
        Settings(beam=3, min_len=0),
        Settings(beam=4, no_repeat_ngram=1, max_len=9),
        Settings(beam=4, no_repeat_ngram=2, max_len=9),
        Settings(beam=3, no_repeat_ngram=3, max_len=9),
        Settings(beam=3, prefix=(5, 4)),
        Settings(beam=3, prefix=(4, 4, 4), no_repeat_ngram=2),
        Settings(beam=2, prefix=(5, 2)),
        Settings(beam=20, max_len=3),
        Settings(beam=3, max_len=0, min_len=0),
    ],
    ids=str,
)
def test_equals_reference(settings: Settings, seed: int) -> None:
    rule = random_rule(vocab=7, seed=seed)
    made = generator(
        [ScriptedModel(rule)],
        3,
        **settings.arguments(),
    )
    limits = replace(made.setup.limits, max_len_b=settings.max_len)
    setup = replace(made.setup, limits=limits)  # where these contradict each other, too
    results = SequenceGenerator(setup).generate(batch_of(SOURCES), prefix_tokens=settings.prefixes(len(SOURCES)))
    for source, hypotheses in zip(SOURCES, results, strict=True):
        assert_same_pairs(as_pairs(hypotheses), beam_search(rule, source, settings))


def test_prefixes_of_unequal_length_are_each_sentences_own() -> None:
    rule = random_rule(vocab=7, seed=11)
    prefixes = [(5,), (4, 6, 5), (), (6, 4)]
    padded = torch.tensor([[*prefix, 1, 1, 1][:3] for prefix in prefixes])
    results = generator([ScriptedModel(rule)], 3, beam_size=3, max_len_b=6, min_len=2).generate(
        batch_of(SOURCES), prefix_tokens=padded
    )
    for source, prefix, hypotheses in zip(SOURCES, prefixes, results, strict=True):
        assert_same_pairs(as_pairs(hypotheses), beam_search(rule, source, Settings(min_len=2, prefix=prefix)))


@pytest.mark.parametrize("use_cache", [True, False])
def test_each_member_reads_its_own_start_token_at_every_step(use_cache: bool) -> None:
    class OtherStart(ScriptedModel):
        def start_token(self, task_eos: int) -> int:
            return 0

    rule = random_rule(vocab=9, seed=4)
    models = [ScriptedModel(rule), OtherStart(rule)]
    starts: list[set[int]] = [set(), set()]
    for model, own in zip(models, starts, strict=True):
        model.decoder.register_forward_pre_hook(lambda _, given, own=own: own.update(given[0][:, 0].tolist()))
    generator(models, 5, beam_size=3, max_len_b=3, max_len_a=0, use_cache=use_cache).generate(batch_of(SOURCES))
    if use_cache:  # later steps read the newest token alone
        assert 0 in starts[1]
        assert 0 not in starts[0]
    else:
        assert starts == [{EOS}, {0}]


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_match_source_len(semantics: str) -> None:
    options = {"beam_size": 4, "min_len": 0, "match_source_len": True, "semantics": semantics}
    results = generator([ScriptedModel(random_rule(vocab=7, seed=2))], 3, **options).generate(batch_of(SOURCES))
    for source, hypotheses in zip(SOURCES, results, strict=True):
        assert {len(h.tokens) for h in hypotheses} == {len(source)}


def test_outputs_fit_the_model() -> None:
    """The model's maximum number of positions ends an output that max_len_b would allow to continue."""
    rule = table_rule({(A,) * n: {A: 0.9, EOS: 0.1} for n in range(9)}, vocab=6)
    for hypotheses in generator([ScriptedModel(rule, longest=5)], 2, beam_size=1).generate(batch_of(SOURCES)):
        assert [h.tokens.tolist() for h in hypotheses] == [[A, A, A, A, EOS]]


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_attention_follows_the_hypothesis(scale: float) -> None:
    """With guidance it is the attention over the source, not that of the members that read an empty one."""
    model = ScriptedModel(random_rule(vocab=7, seed=2))
    options = {"need_attention": True, "max_len_b": 5, "guidance_scale": scale}
    for hypotheses in generator([model], 3, beam_size=3, **options).generate(batch_of(SOURCES)):
        for h in hypotheses:
            assert h.attention is not None
            assert h.alignment is not None
            assert h.attention.shape == (len(h.tokens), 6)
            assert h.attention.sum(-1).tolist() == pytest.approx([1.0] * len(h.tokens))


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
@pytest.mark.parametrize("name", ["transformer_tiny", "fconv_tiny", "lstm_tiny"])
def test_the_coverage_penalty_is_that_of_the_hypothesis_own_attention(name: str, semantics: str) -> None:
    """Each score is multiplied out from the parallel pass over its tokens; beams change places, and sentences end."""
    model = build(name).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    options = {"len_penalty": 0.7, "coverage_penalty": 0.3, "semantics": semantics}
    search = generator([model], VOCAB - 4, beam_size=4, max_len_b=7, min_len=0, **options)
    sources = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2)]
    found = search.generate(batch_of(sources))
    for source, hypotheses in zip(sources, found, strict=True):
        assert len(hypotheses) == 4
        for hypothesis in hypotheses:
            previous = torch.cat([torch.tensor([2]), hypothesis.tokens[:-1]]).unsqueeze(0)
            with torch.no_grad():
                out = model(torch.tensor([source]), torch.tensor([len(source)]), previous, need_attention=True)
            lprobs = model.get_normalized_probs(out.logits[0]).gather(1, hypothesis.tokens.unsqueeze(1))
            covered = out.attention[0].sum(0).clamp(1e-9, 1.0).log().sum()
            wanted = float(lprobs.sum()) / len(hypothesis.tokens) ** 0.7 + 0.3 * float(covered)
            assert hypothesis.score == pytest.approx(wanted, abs=1e-9)


def guided_scores(
    rule: Rule, source: tuple[int, ...], history: tuple[int, ...], semantics: str, longest: int
) -> Tensor:
    """Log-probabilities of the next token with a guidance scale of 1.8 and a repetition penalty of 1.3."""
    wanted, away = (rule(read, history).log_softmax(-1) for read in (source, (EOS,)))
    scores = away + 1.8 * (wanted - away)
    before = {EOS, *history} if semantics == "huggingface" else {*history}
    if semantics == "fairseq":
        scores[1] = -math.inf
        if len(history) == longest:
            scores = scores.where(torch.arange(len(scores)) == EOS, -math.inf)
    for token in before:
        scores[token] *= 1.3 if scores[token] < 0 else 1 / 1.3
    return scores.log_softmax(-1)


@pytest.mark.parametrize(
    ("semantics", "strategy"), [("huggingface", Greedy()), ("huggingface", Sampling(3)), ("fairseq", Sampling(3))]
)
def test_guided_scores_are_log_probabilities(semantics: str, strategy: Search) -> None:
    """In greedy search by Hugging Face's rules and in sampling."""
    rule, longest = random_rule(9, seed=4), 5
    sources = [(4, 5, 2), (6, 2), (4, 4, 6, 2)]
    options = {"semantics": semantics, "guidance_scale": 1.8, "processors": [RepetitionPenalty(1.3)]}
    search = generator(
        [ScriptedModel(rule)], 5, beam_size=6, max_len_b=longest, min_len=0, search_strategy=strategy, **options
    )
    for source, hypotheses in zip(sources, search.generate(batch_of(sources)), strict=True):
        for hypothesis in hypotheses:
            tokens = tuple(hypothesis.tokens.tolist())
            steps = [guided_scores(rule, source, tokens[:step], semantics, longest) for step in range(len(tokens))]
            wanted = [float(scores[token]) for scores, token in zip(steps, tokens, strict=True)]
            assert hypothesis.positional_scores.tolist() == pytest.approx(wanted, abs=1e-5)
            assert hypothesis.score == pytest.approx(sum(wanted) / len(wanted), abs=1e-9)
            if isinstance(strategy, Greedy):
                assert list(tokens) == [int(scores.argmax()) for scores in steps]


def test_a_training_model_is_left_training() -> None:
    model = ScriptedModel(random_rule(vocab=7, seed=2)).train()
    generator([model], 3).generate(batch_of(SOURCES))
    assert model.training
    assert model.decoder.training


def test_groups_differ_only_from_tokens_that_were_possible() -> None:
    """The first group has one possible token; the others, of score -inf, only fill its list of candidates."""
    lprobs = torch.full((1, 2, 3), -1.0)
    lprobs[0, 0, :2] = -torch.inf
    found = DiverseBeamSearch(2, strength=0.5).step(step_context(1), Scores(lprobs, torch.zeros(1, 2)))
    second = zip(found.tokens[0, 1::2].tolist(), found.scores[0, 1::2].tolist(), strict=True)
    assert sorted(second) == [(0, -1.0), (1, -1.0)], "the first group has chosen token 2"
