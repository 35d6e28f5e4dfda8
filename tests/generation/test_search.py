"""The generator against hand-written tables, a plain reference search, exhaustive search, and itself."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from seqgen.addons.speculative.drafters import PromptLookup
from seqgen.addons.speculative.verification import SpeculativeSearch
from seqgen.decoding.processors.tokens import RepetitionPenalty
from seqgen.decoding.search.huggingface import HuggingFaceDiverseBeam
from seqgen.extend import FORBIDDEN, FORMATS, Greedy, Observer, Sampling, Search, SequenceGenerator, StepRecord
from seqgen.text.translator import Translator
from tests.covering import covering
from tests.generation.test_laws_components import Watching, assert_fields_follow, hashed
from tests.generators import make_generator
from tests.hypotheses import as_pairs, assert_same, assert_same_pairs
from tests.model_zoo import VOCAB, sharp
from tests.reference_search import EOS, Settings, beam_search
from tests.scripted_model import ScriptedDecoder, ScriptedModel, batch_of, dictionary, random_rule, table_rule
from tests.text_models import TEXTS, text_model

A, B = 4, 5
SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]


def generator(models: list[ScriptedModel], words: int, **options: object) -> SequenceGenerator:
    return make_generator(models, dictionary(words), **options)


def test_hand_written_table() -> None:
    """Greedy takes A, the likelier first token; two beams find that B leads to the likelier sentence."""
    table = {(): {A: 0.6, B: 0.4}, (A,): {A: 0.4, B: 0.3, EOS: 0.3}, (B,): {EOS: 0.9, A: 0.1}}
    table |= {(A, A): {EOS: 0.5, A: 0.5}, (A, B): {EOS: 1.0}, (B, A): {EOS: 1.0}, (A, A, A): {EOS: 1.0}}
    model = ScriptedModel(table_rule(table, vocab=6))
    greedy, wide = (generator([model], 2, beam_size=beam, normalize_scores=False) for beam in (1, 2))
    (found,) = greedy.generate(batch_of([(4, 2)]))
    assert_same_pairs(as_pairs(found), [((A, A, EOS), math.log(0.6 * 0.4 * 0.5))])
    (found,) = wide.generate(batch_of([(4, 2)]))
    # step 1: B </s> .36 and A A .24 lead A B .18, A </s> .18; step 2: A A </s> .12, A A A .12, A B </s> .18
    assert_same_pairs(as_pairs(found), [((B, EOS), math.log(0.36)), ((A, B, EOS), math.log(0.18))])
    assert found[0].positional_scores.tolist() == pytest.approx([math.log(0.4), math.log(0.9)])


def test_a_negative_length_penalty_compares_the_current_length() -> None:
    """``early_stopping=never`` asks what is best at the maximum length only where the penalty favours length.

    After step 1, </s> has log .3 and B </s> twice log .1 = -4.6. A A, with log .57, may still have more than that, and
    would have -11 after 20 tokens; the search goes on, and finds A A </s> with three times log .57.
    """
    table = {(): {A: 0.6, EOS: 0.3, B: 0.1}, (A,): {A: 0.95, EOS: 0.05}, (A, A): {EOS: 1.0}}
    options = {"semantics": "huggingface", "early_stopping": "never", "len_penalty": -1.0, "max_len": 20, "min_len": 0}
    search = generator([ScriptedModel(table_rule(table, vocab=6))], 2, beam_size=2, **options)
    wanted = [((EOS,), math.log(0.3)), ((A, A, EOS), 3 * math.log(0.57))]
    assert_same_pairs(as_pairs(search.generate(batch_of([(4, 2)]))[0]), wanted)


@pytest.mark.parametrize("first", [0, 1])
def test_members_with_and_without_a_state(first: int) -> None:
    """A member that reads all earlier tokens gets them also beside one that reads the newest alone."""
    forgetful = ScriptedModel(random_rule(VOCAB, seed=1))
    forgetful.decoder.__class__ = type("WithoutState", (ScriptedDecoder,), {"set_state": lambda *_: None})
    models = [forgetful, sharp("transformer_tiny")]
    made = [
        generator([models[first], models[1 - first]], VOCAB - 4, max_len_b=6, use_cache=use) for use in (True, False)
    ]
    assert_same(*(each.generate(batch_of(SOURCES)) for each in made))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "settings",
    [
        *(Settings(), Settings(beam=1), Settings(beam=5, length_penalty=0.3), Settings(beam=3, min_len=0)),
        *(Settings(beam=4, normalize=False, unkpen=-1.0), Settings(beam=3, unkpen=2.0, temperature=1.7)),
        *(Settings(beam=3, min_len=4, max_len=5), Settings(beam=3, min_len=4, max_len=2)),
        *(Settings(beam=4, no_repeat_ngram=size, max_len=9) for size in (1, 2, 3)),
        *(Settings(beam=3, prefix=(5, 4)), Settings(beam=3, prefix=(4, 4, 4), no_repeat_ngram=2)),
        *(Settings(beam=2, prefix=(5, 2)), Settings(beam=20, max_len=3), Settings(beam=3, max_len=0, min_len=0)),
    ],
    ids=str,
)
def test_equals_reference(settings: Settings, seed: int) -> None:
    rule = random_rule(vocab=7, seed=seed)
    made = generator([ScriptedModel(rule)], 3, **settings.arguments())
    limits = replace(made.setup.limits, max_len_b=settings.max_len)
    setup = replace(made.setup, limits=limits)  # where these contradict each other, too
    results = SequenceGenerator(setup).generate(batch_of(SOURCES), prefix_tokens=settings.prefixes(len(SOURCES)))
    for source, hypotheses in zip(SOURCES, results, strict=True):
        assert_same_pairs(as_pairs(hypotheses), beam_search(rule, source, settings))


def test_prefixes_of_unequal_length_are_each_sentences_own() -> None:
    rule = random_rule(vocab=7, seed=11)
    prefixes = [(5,), (4, 6, 5), (), (6, 4)]
    padded = torch.tensor([[*prefix, 1, 1, 1][:3] for prefix in prefixes])
    made = generator([ScriptedModel(rule)], 3, beam_size=3, max_len_b=6, min_len=2)
    results = made.generate(batch_of(SOURCES), prefix_tokens=padded)
    for source, prefix, hypotheses in zip(SOURCES, prefixes, results, strict=True):
        assert_same_pairs(as_pairs(hypotheses), beam_search(rule, source, Settings(min_len=2, prefix=prefix)))


@pytest.mark.parametrize("use_cache", [True, False])
def test_each_member_reads_its_own_start_token_at_every_step(use_cache: bool) -> None:
    rule = random_rule(vocab=9, seed=4)
    models = [ScriptedModel(rule), ScriptedModel(rule)]
    models[1].start_token = lambda task_eos: 0  # type: ignore[method-assign]
    starts: list[set[int]] = [set(), set()]
    for model, own in zip(models, starts, strict=True):
        model.decoder.register_forward_pre_hook(lambda _, given, own=own: own.update(given[0][:, 0].tolist()))
    generator(models, 5, beam_size=3, max_len_b=3, max_len_a=0, use_cache=use_cache).generate(batch_of(SOURCES))
    # with a cache, later steps read the newest token alone
    assert (0 in starts[1] and 0 not in starts[0]) if use_cache else starts == [{EOS}, {0}]


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
            assert h.attention is not None and h.alignment is not None  # noqa: PT018
            assert h.attention.shape == (len(h.tokens), 6)
            assert h.attention.sum(-1).tolist() == pytest.approx([1.0] * len(h.tokens))


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
@pytest.mark.parametrize("name", ["transformer_tiny", "fconv_tiny", "lstm_tiny"])
def test_the_coverage_penalty_is_that_of_the_hypothesis_own_attention(name: str, semantics: str) -> None:
    """Each score is multiplied out from the parallel pass over its tokens; beams change places, and sentences end."""
    model = sharp(name, factor=2.0)
    options = {"len_penalty": 0.7, "coverage_penalty": 0.3, "semantics": semantics}
    search = generator([model], VOCAB - 4, beam_size=4, max_len_b=7, min_len=0, **options)
    sources = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2)]
    for source, hypotheses in zip(sources, search.generate(batch_of(sources)), strict=True):
        assert len(hypotheses) == 4
        for hypothesis in hypotheses:
            previous = torch.cat([torch.tensor([2]), hypothesis.tokens[:-1]]).unsqueeze(0)
            with torch.no_grad():
                out = model(torch.tensor([source]), torch.tensor([len(source)]), previous, need_attention=True)
            lprobs = model.get_normalized_probs(out.logits[0]).gather(1, hypothesis.tokens.unsqueeze(1))
            covered = out.attention[0].sum(0).clamp(1e-9, 1.0).log().sum()
            wanted = float(lprobs.sum()) / len(hypothesis.tokens) ** 0.7 + 0.3 * float(covered)
            assert hypothesis.score == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(
    ("semantics", "strategy"), [("huggingface", Greedy()), ("huggingface", Sampling(3)), ("fairseq", Sampling(3))]
)
def test_guided_scores_are_log_probabilities(semantics: str, strategy: Search) -> None:
    """In greedy search by Hugging Face's rules and in sampling, also after a penalty."""
    options = {"semantics": semantics, "guidance_scale": 1.8, "processors": [RepetitionPenalty(1.3)], "top_tokens": 9}
    search = generator([ScriptedModel(random_rule(9, seed=4))], 5, beam_size=6, search_strategy=strategy, **options)
    for h in (h for hypotheses in search.generate(batch_of(SOURCES)) for h in hypotheses):
        assert h.top_scores.exp().sum(1).tolist() == pytest.approx([1.0] * len(h.tokens), abs=1e-6)
        chosen = h.top_scores[h.top_tokens == h.tokens.unsqueeze(1)]
        assert chosen.tolist() == pytest.approx(h.positional_scores.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "count"),
    covering(
        [
            {},
            {"skip_log_softmax": False, "lazy_compaction": False},
            {"semantics": "huggingface", "early_stopping": "never", "len_penalty": 0.3},
            {"semantics": "huggingface", "beam_size": 1},
            {"search_strategy": HuggingFaceDiverseBeam(2, 0.5), "semantics": "huggingface"},  # processes scores itself
        ],
        [1, 3, 11],
    ),
    ids=lambda value: " ".join(value) if isinstance(value, dict) else str(value),
)
def test_the_most_probable_tokens_are_the_models(options: dict[str, Any], count: int) -> None:
    """Of a token that is suppressed there is no score, nor where there are fewer tokens than asked for."""
    rules = [random_rule(9, seed) for seed in range(2)]
    keys = {"beam_size": 4, "max_len": 6, "min_len": 0, "tokens_to_suppress": ["w1"], **options}
    for members in (rules[:1], rules):
        made = generator([ScriptedModel(rule) for rule in members], 5, top_tokens=count, **keys)
        for source, hypotheses in zip(SOURCES, made.generate(batch_of(SOURCES)), strict=True):
            for h in hypotheses:
                for step, (tokens, scores) in enumerate(zip(h.top_tokens, h.top_scores, strict=True)):
                    each = [rule(source, tuple(h.tokens[:step].tolist())).log_softmax(-1) for rule in members]
                    lprobs = torch.stack(each).logsumexp(0) - math.log(len(members))
                    lprobs[B] = -math.inf
                    if made.setup.forces_end:  # fairseq forbids padding, and forces end-of-sentence at the maximum
                        lprobs[[1] if step < 5 else [0, 1, *range(3, 9)]] = -math.inf
                    best = lprobs.sort(descending=True)
                    wanted = [*best.values.tolist(), -math.inf, -math.inf][:count]
                    assert scores.tolist() == pytest.approx(wanted, abs=1e-10)
                    possible = int((scores > -math.inf).sum())
                    assert tokens[:possible].tolist() == best.indices[:possible].tolist()


def test_a_token_that_a_prefix_allows_again_is_not_forbidden() -> None:
    seen: list[set[int]] = []

    class Watching(Observer):
        needs = frozenset({FORBIDDEN})

        def observe(self, record: StepRecord) -> None:
            by, tokens = record.forbidden.by.flatten(), record.forbidden.tokens.flatten()
            seen.append(set(tokens[by >= 0].tolist()))

    keys = {"beam_size": 1, "max_len": 4, "min_len": 2, "tokens_to_suppress": ["w1"], "observers": [Watching()]}
    rule = table_rule({history: {B: 0.6, A: 0.4} for history in ((), (B,), (B, A))}, vocab=6)
    made = generator([ScriptedModel(rule)], 2, **keys)
    made.generate(batch_of([(4, 2)]), prefix_tokens=torch.tensor([[B]]))
    assert [B in each for each in seen[:2]] == [False, True]


# --- the fields of hypotheses in speculative decoding, in JSON and in joined lines


LINES = [(4, 5, 6, 2), (7, 2), (8, 4, 4, 5, 6, 7, 2)]


class Fields(Watching):
    """The fields alone."""

    needs = frozenset()
    observe = Observer.observe


@pytest.mark.parametrize(
    ("search", "beam"),
    [(SpeculativeSearch(PromptLookup(2), 3, Sampling(4)), 4), (SpeculativeSearch(PromptLookup(1), 3), 1)],
    ids=["sampling", "greedy"],
)
def test_drafted_tokens_have_fields(search: Search, beam: int) -> None:
    options = {"beam_size": beam, "max_len": 6, "min_len": 0, "search_strategy": search}
    generator = make_generator([ScriptedModel(random_rule(9, 0))], dictionary(5), **options)
    found, plain = (generator.generate(batch_of(LINES), observers=own) for own in ([Fields()], []))
    assert_fields_follow(found)
    assert_same(found, plain)


def test_in_texts_json_and_parts_of_a_line() -> None:
    translator = Translator(text_model(seed=3, sharpness=1.0), beam=3, nbest=2)
    decoding = translator.prepare(observers=[Fields()])
    lines = [json.loads(FORMATS["json"](decoding, None)(one)) for one in decoding.translate(TEXTS)]
    for line in lines:
        for item in line["hypotheses"]:
            tokens = item["tokens"]
            assert item["fields"]["prefix"] == [hashed(tokens[: t + 1]) for t in range(len(tokens))]
            assert item["fields"]["of"] == [list(pair) for pair in enumerate(tokens)]
    unknown = lambda self, candidates, context: {"nan": torch.full_like(candidates.scores, math.nan)}  # noqa: E731
    decoding = translator.prepare(observers=[type("Nothing", (Observer,), {"token_fields": unknown})()])
    line = json.loads(FORMATS["json"](decoding, None)(next(iter(decoding.translate(TEXTS)))))
    assert {*line["hypotheses"][0]["fields"]["nan"]} == {None}


def test_sentences_of_a_line_are_joined() -> None:
    translator = Translator(text_model(seed=3, sharpness=1.0), beam=2)
    split: dict[str, Any] = {"input_split": "sentences", "input_split_lang": "en", "batch_size": 1}
    line = translator.translate(["W1 w5. W2 w3! W4 w4 w6."], observers=[Fields()], **split)[0]
    parts = [part.hypotheses[0] for part in line.sentences]
    assert len(parts) > 1
    joined = line.hypotheses[0].fields
    assert {*joined} == {"prefix", "of", "sum"}
    assert joined["of"].tolist() == [row for part in parts for row in part.fields["of"].tolist()]
