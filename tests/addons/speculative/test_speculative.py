"""Speculative decoding writes what its models would write alone, and in the same proportions when they sample."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.addons.speculative.drafters import ModelDrafter, NgramDraft, PromptLookup
from seqgen.addons.speculative.verification import NOTHING, SpeculativeSearch, SpeculativeSession
from seqgen.decoding.processors.tokens import RepetitionPenalty
from seqgen.extend import Batch, EncoderDecoderModel, Greedy, Hypothesis, Sampling, map_tensors
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import ARCHITECTURES, VOCAB, registered, sharp
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule

SOURCES = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2), (2,), (7, 8, 9, 2)]
Results = list[list[Hypothesis]]


def near(model: EncoderDecoderModel, name: str) -> EncoderDecoderModel:
    """A model of nearly the same weights, which guesses well but not always."""
    other = sharp(name)
    torch.manual_seed(11)
    with torch.no_grad():
        for mine, its in zip(other.parameters(), model.parameters(), strict=True):
            mine.copy_(its + 0.2 * its.std() * torch.randn_like(its) if its.numel() > 1 else its)
    return other


def decode(
    models: list[EncoderDecoderModel], batch: Batch, procedure: SpeculativeSearch | None = None, **options: object
) -> Results:
    options = {"max_len_b": 8, "min_len": 0, **options}
    if procedure is not None:
        procedure.__init__(procedure.drafter, procedure.draft_tokens, options.get("search_strategy"))  # type: ignore[misc]
        options["search_strategy"] = procedure
    generator = make_generator(models, dictionary(VOCAB - 4), **options)
    return generator.generate(batch, prefix_tokens=options.pop("prefix", None))


@pytest.mark.parametrize(
    ("name", "cache"), [*((name, True) for name in ARCHITECTURES), *((name, False) for name in ("average", "t5_tiny"))]
)
def test_greedy_is_that_of_the_model_alone(name: str, cache: bool) -> None:
    """Whatever drafts: the model itself, one like it, one of another kind; with few and with many guesses."""
    model, batch = sharp(name), batch_of(SOURCES)
    options = {"use_cache": cache, "need_attention": True, "max_len_a": 0.5, "max_len_b": 4}
    alone = decode([model], batch, **options)
    rates = []
    for draft, count in ((model, 3), (near(model, name), 5), (sharp("fconv_tiny", 3), 2)):
        procedure = SpeculativeSearch(ModelDrafter(draft), count)
        assert_same(decode([model], batch, procedure, **options), alone)
        rates.append(procedure.acceptance_rate)
    assert rates[0] == 1.0
    assert rates[0] > rates[1] > rates[2]


@pytest.mark.parametrize(
    "options",
    [
        {"no_repeat_ngram_size": 2},
        {"search_strategy": Greedy(), "semantics": "huggingface", "processors": [RepetitionPenalty(1.5)]},
        {"semantics": "huggingface", "min_len": 3, "beam_size": 1},
        {"unk_penalty": -2.0, "temperature": 0.5, "min_len": 8},
        {"guidance_scale": 2.0},
        {"skip_log_softmax": False, "lazy_compaction": False},
        {"end_tokens": [2, 7, 9]},
        {"max_len_b": 0},
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("names", [["t5_tiny"], ["average", "fconv_shared", "lstm_tiny"]], ids=str)
def test_with_all_that_changes_scores(names: list[str], options: dict[str, object]) -> None:
    models, batch = [sharp(name) for name in names], batch_of(SOURCES)
    alone = decode(models, batch, **options)
    for drafter in (ModelDrafter(near(models[0], names[0])), PromptLookup(3)):
        assert_same(decode(models, batch, SpeculativeSearch(drafter, 4), **options), alone)


def test_a_draft_model_reads_its_own_start_token() -> None:
    model, draft, read = sharp("t5_tiny"), sharp("t5_tiny"), set()
    draft.start_token = lambda task_eos: 7  # type: ignore[method-assign]
    draft.decoder.register_forward_pre_hook(lambda _, arguments: read.update(arguments[0][:, 0].tolist()))
    decode([model], batch_of(SOURCES), SpeculativeSearch(ModelDrafter(draft), 3))
    assert read == {7}


def test_alone_equals_batched_and_prefixes_are_kept() -> None:
    model, batch = sharp("transformer_shared"), batch_of(SOURCES)
    drafter = ModelDrafter(near(model, "transformer_shared"))
    prefix = torch.tensor([[5, 6, 7], [8, 1, 1], [1, 1, 1], [9, 9, 1], [4, 4, 4]])
    for options in ({}, {"search_strategy": Sampling(seed=3), "beam_size": 3}):
        search = SpeculativeSearch(drafter, inner=options.get("search_strategy"))
        values = {"beam_size": 1, "max_len_a": 0.5, "max_len_b": 3, **options, "search_strategy": search}
        generator = make_generator([model], dictionary(VOCAB - 4), **values)
        together = generator.generate(batch, prefix_tokens=prefix)
        for row, source in enumerate(SOURCES):
            one = replace(batch_of([source]), ids=torch.tensor([row]))
            assert_same(generator.generate(one, prefix_tokens=prefix[row : row + 1]), [together[row]])
            kept = [token for token in prefix[row].tolist() if token != 1]
            assert all(h.tokens.tolist()[: len(kept)] == kept for h in together[row])


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_samples_depend_neither_on_the_number_of_guesses_nor_on_the_cache(semantics: str) -> None:
    """Guesses that are looked up change no draw."""
    model, batch = sharp("fconv_shared"), batch_of(SOURCES)
    draft = near(model, "fconv_shared")
    options = {"search_strategy": Sampling(seed=5), "beam_size": 2, "semantics": semantics}
    wanted = decode([model], batch, SpeculativeSearch(ModelDrafter(draft), 4), **options)
    for count, cache in ((1, True), (9, True), (3, False)):
        procedure = SpeculativeSearch(ModelDrafter(draft), count)
        assert_same(decode([model], batch, procedure, use_cache=cache, **options), wanted)
        assert 0 < procedure.acceptance_rate < 1
    looked_up = decode([model], batch, SpeculativeSearch(PromptLookup(2)), **options)
    assert_same(looked_up, decode([model], batch, **options))


def test_a_guess_is_accepted_with_probability_p_over_q() -> None:
    """Right up to the uniform p / q, for every token; what replaces it is drawn in proportion to max(0, p - q)."""
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(1, 40, 12, dtype=torch.float64, generator=generator).softmax(-1) for _ in range(2))
    guesses = torch.randint(12, (1, 40), generator=generator)
    ratio = (p / q).gather(-1, guesses.unsqueeze(-1)).squeeze(-1)
    assert 10 < int((ratio < 1).sum()) < 30
    replacement, residuals = torch.full_like(guesses, 99), []

    def draw(purpose: int, step: int, residual: Tensor) -> Tensor:
        residuals.append(residual)
        return replacement

    def verified(uniforms: Tensor) -> Tensor:
        row = SimpleNamespace(uniforms=lambda purpose, step: uniforms, draw=draw)
        return SpeculativeSession.verified(row, p.log(), guesses, q.log(), 0)  # type: ignore[arg-type]

    below, above = ratio * (1 - 1e-6), ratio * (1 + 1e-6)
    assert torch.equal(verified(below.clamp(max=1 - 1e-9)), guesses)
    assert torch.equal(verified(above.clamp(max=1 - 1e-9)), guesses.where(ratio > 1, replacement))
    for residual in residuals:
        torch.testing.assert_close(residual.exp(), (p - q).clamp(min=0), rtol=0, atol=1e-12)


def test_members_and_draft_read_sources_of_their_own() -> None:
    models = [sharp("transformer_tiny"), sharp("fconv_tiny")]
    batch, other = batch_of(SOURCES), batch_of([source[::-1] for source in SOURCES])
    batch = replace(batch, member_sources=[batch.source, other.source])
    alone = decode(models, batch)
    guessed, procedure = (SpeculativeSearch(ModelDrafter(models[1])) for _ in range(2))
    sources = [batch.source, other.source, other.source]
    assert_same(decode(models, replace(batch, member_sources=sources), guessed), alone)
    single = decode([models[1]], replace(batch, source=other.source, member_sources=None))
    exact = replace(batch, source=other.source, member_sources=[other.source, other.source])
    assert_same(decode([models[1]], exact, procedure), single)
    assert procedure.acceptance_rate == 1.0


def test_what_is_looked_up() -> None:
    """The longest match first, the source before the output, the first of several; no guess goes beyond a gap."""

    sources = torch.tensor([[4, 5, 6, 5, 7, 2], [8, 9, 2, 1, 1, 1]])
    sentences = SimpleNamespace(continues_source=False, src_tokens=sources, src_padding=sources == 1)
    context: Any = SimpleNamespace(setup=SimpleNamespace(eos=2), sentences=sentences)

    def propose(first: list[int], second: list[int], longest: int = 2, count: int = 3) -> list[list[int]]:
        written = torch.tensor([[[2, *first]], [[2, *second]]])
        drafts = NgramDraft(longest, context).propose(len(first), written, count)
        return drafts.tokens[:, 0].tolist()

    assert propose([4, 6, 5], [9, 3, 3]) == [[7], [3]]
    assert propose([6, 5], [3, 8]) == [[7], [9]]
    assert propose([3, 5], [3, 8]) == [[6, 5, 7], [9, NOTHING, NOTHING]]
    assert propose([3, 5], [3, 9]) == [[6, 5, 7], [NOTHING] * 3]
    assert propose([9, 7, 9, 7], [3, 3, 3, 3]) == [[9, 7], [3, 3]]
    assert propose([9], [3]) == [[], []]
    assert propose([], []) == [[], []]


def test_up_to_the_last_position_of_a_table() -> None:
    """Neither the models nor a draft with a shorter table are asked beyond it."""
    torch.manual_seed(0)
    options = {"decoder_learned_pos": True}
    model = registered("transformer_tiny", max_target_positions=9, **options)().double().eval()
    draft = registered("transformer_tiny", max_target_positions=5, **options)().double().eval()
    for further in ({}, {"semantics": "huggingface"}, {"search_strategy": Sampling(), "semantics": "huggingface"}):
        procedure = SpeculativeSearch(ModelDrafter(draft), 4)
        results = decode([model], batch_of(SOURCES), procedure, min_len=50, max_len_b=50, **further)
        assert all(len(hypotheses[0].tokens) == 9 for hypotheses in results)
        if "search_strategy" not in further:
            assert_same(results, decode([model], batch_of(SOURCES), min_len=50, max_len_b=50, **further))


def test_degenerate_cases() -> None:
    """No sentences, no possible tokens, and a draft that is wider than the model: no more than a guess."""
    model, batch = sharp("t5_tiny"), batch_of(SOURCES)
    procedure = SpeculativeSearch(ModelDrafter(sharp("fconv_tiny")))
    assert decode([model], map_tensors(batch, lambda tensor: tensor[:0]), procedure) == []
    everything = ["<s>", "</s>", "<unk>", *(f"w{number}" for number in range(VOCAB - 4))]
    for search in (None, Sampling()):
        found = decode([model], batch, procedure, search_strategy=search, tokens_to_suppress=everything)
        assert found == [[] for _ in SOURCES]
    wide = ScriptedModel(random_rule(VOCAB + 1, 1))
    assert_same(decode([model], batch, SpeculativeSearch(ModelDrafter(wide))), decode([model], batch))
