"""Language models: prompts, batches of prompts, ensembles, drafts, guidance, limits and the text of continuations."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.papers.shallow_fusion import DensityRatio
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer
from seqgen.data.tokenizers.pretrained import byte_files, make_tokenizer
from seqgen.data.tokenizers.sentencepiece_tokenizer import FAIRSEQ_IDS, SentencePieceTokenizer, train_sentencepiece
from seqgen.extend import Fusion, LogitsProcessor, ModelInMemory, Source, StepContext, Translation, WordStreamer
from seqgen.text.translator import Translator
from tests import hypotheses
from tests.commands import sentences
from tests.exhaustive import ranked_outputs
from tests.generation.test_sampling import chi_square
from tests.hypotheses import as_pairs, assert_same_pairs
from tests.language_models import PROMPTS, language_model
from tests.model_zoo import registered
from tests.scripted_model import dictionary
from tests.text_models import next_scores, task_for, text_model


@pytest.fixture(autouse=True, params=["transformer_lm", "llama"])
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has language models of this kind."""
    monkeypatch.setattr("tests.language_models.KIND", request.param)


SHORT: dict[str, Any] = {"beam": 3, "nbest": 3, "max_len_b": 9}


def tokens_of(translations: list[Translation]) -> list[list[list[int]]]:
    """The tokens of all hypotheses."""
    return [[hypothesis.tokens.tolist() for hypothesis in translation.hypotheses] for translation in translations]


def assert_same(found: list[Translation], expected: list[Translation]) -> None:
    """All hypotheses are the same but for rounding."""
    hypotheses.assert_same(*([one.hypotheses for one in some] for some in (found, expected)), 1e-5)


def plain_lprobs(model: Any, tokens: list[int]) -> Tensor:
    """Log-probabilities of each token of ``tokens`` after the ones before it; one pass without state and padding."""
    source = Source(torch.tensor([tokens[:1]]), torch.tensor([1]))
    decoder_input = torch.tensor([[0, *tokens[1:-1]]])
    with torch.no_grad():
        lprobs = model(source.src_tokens, source.src_lengths, decoder_input).logits.log_softmax(-1)[0]
    return lprobs[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])]


@pytest.mark.parametrize("settings", [{"beam": 1}, SHORT | {"normalize_scores": False}])
def test_a_prompt_equals_the_same_tokens_forced_after_an_empty_prompt(settings: dict[str, Any]) -> None:
    item = language_model()
    settings = {**settings, "max_len_b": 200, "min_len": 0}  # forced tokens count as output for the minimum length
    given = Translator(item, max_len=16, **settings).translate(PROMPTS)
    lengths = [len(prompt.split()) for prompt in PROMPTS]
    for prompt, length, translation in zip(PROMPTS, lengths, given, strict=True):
        forced = Translator(item, max_len=16 + length, **settings)
        (other,) = forced.translate([""], prefixes=[prompt])
        for one, two in zip(translation.hypotheses, other.hypotheses, strict=True):
            assert one.tokens.tolist() == two.tokens[length:].tolist()
            assert one.positional_scores.tolist() == pytest.approx(two.positional_scores[length:].tolist(), abs=1e-5)


@pytest.mark.parametrize("draft", ["itself", "smaller", "ngrams"])
def test_drafts_do_not_change_greedy_search(draft: str) -> None:
    item = language_model()
    prompts = [*PROMPTS, "w1 w5 w8 w1 w5 w8 w1 w5"]
    expected = Translator(item, beam=1).translate(prompts)
    translator = Translator(item, beam=1, **({"prompt_lookup": 2} if draft == "ngrams" else {"draft": draft}))
    translator._drafts = {"itself": item, "smaller": language_model(6, max_target_positions=14, decoder_layers=1)}
    for size in (1, 6):
        assert_same(translator.translate(prompts, batch_size=size), expected)
    search = translator.prepare(batch_size=6).generator.setup.search
    assert search.verified > 0
    if draft == "itself":
        assert search.acceptance_rate == 1


def test_guidance_contrasts_the_prompt_with_the_empty_prompt() -> None:
    """The guided score of each token is that of the formula, with an unconditional half that reads no prompt."""
    item, scale = language_model(), 1.7
    guided = Translator(item, beam=1, guidance_scale=scale, max_len_b=9).translate(PROMPTS)
    for prompt, translation in zip(PROMPTS, guided, strict=True):
        tokens = translation.hypotheses[0].tokens.tolist()
        source = item.task.encode_source(prompt).tolist()
        with torch.no_grad():
            conditional, empty = (
                item.model(torch.tensor([begin]), torch.tensor([len(begin)]), torch.tensor([[2, *tokens[:-1]]]))
                .logits[0]
                .log_softmax(-1)
                for begin in (source, source[:1])
            )
        mixed = empty + scale * (conditional - empty)  # not renormalized
        expected = mixed[torch.arange(len(tokens)), torch.tensor(tokens)].tolist()
        assert translation.hypotheses[0].positional_scores.tolist() == pytest.approx(expected, abs=1e-5)
    plain = Translator(item, beam=1, max_len_b=9).translate(PROMPTS)
    assert_same(guided[1:2], plain[1:2])  # the empty prompt itself
    assert tokens_of(guided) != tokens_of(plain)


def test_a_prompt_counts_as_written_but_for_its_first_token() -> None:
    """No n-gram occurs twice in a prompt and its output; the first end-of-sentence does not forbid the last one."""
    item = language_model()
    repeats = []
    for size in (0, 2):
        found = Translator(item, beam=3, no_repeat_ngram_size=size, max_len_b=9, min_len=9).translate(PROMPTS)
        lines = [
            [*item.task.encode_source(one.source).tolist()[1:], *one.hypotheses[0].tokens.tolist()] for one in found
        ]
        repeats.append([len(line) - 1 - len(set(itertools.pairwise(line))) for line in lines])
    assert max(repeats[0]) > max(repeats[1]) == 0
    (short,) = Translator(item, beam=1, no_repeat_ngram_size=1, max_len_b=4).translate(["w1"])
    assert short.hypotheses[0].tokens[-1] == 2
    assert short.hypotheses[0].score > -torch.inf


# ---- with an encoder-decoder

TWO_FIELDS = ["w0 w1\tw1", "w1 w1 w0 w0 w1\t", "w1\tw0 w0 w1 w0"]


def tiny(name: str, seed: int) -> ModelInMemory:
    return text_model(name, seed, task_for(name, WhitespaceTokenizer(dictionary(2))), 1.8)


class Critic(LogitsProcessor):
    """Adds the weighted log-probabilities of another model, which reads the second field of the line."""

    def __init__(self, model: ModelInMemory, weight: float):
        self.model, self.weight = model, weight

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        scores = [next_scores(self.model, line.split("\t")[1]) for line in context.source_texts or ()]
        rows = enumerate(context.tokens.tolist())
        other = [scores[row // context.rows_per_sentence](tuple(tokens)) for row, tokens in rows]
        return lprobs + self.weight * torch.stack(other)


MIXED: dict[str, tuple[int, Callable[..., dict[str, Any]], Callable[..., Tensor]]] = {
    "fusion": (2, lambda other: {"combination": Fusion(0.4)}, lambda p, q, r: p + 0.4 * q),
    "mean": (2, lambda other: {"combination.weights": [3, 1]}, lambda p, q, r: (0.75 * p.exp() + 0.25 * q.exp()).log()),
    "density ratio": (3, lambda other: {"combination": DensityRatio(0.3, 0.6)}, lambda p, q, r: p - 0.3 * q + 0.6 * r),
    "critic": (1, lambda other: {"processors": [Critic(other, 0.5)]}, lambda p, q, r: p + 0.5 * q),
}
"""How many of three models are members, the settings, and the scores of a step by those of the models."""


@pytest.mark.parametrize("_kind", ["llama"], indirect=True)
@pytest.mark.parametrize("how", MIXED)
@pytest.mark.parametrize("names", [("t5_tiny", "llama_tiny"), ("llama_tiny", "transformer_tiny")], ids="-".join)
def test_both_kinds_together_by_enumeration(names: tuple[str, str], how: str) -> None:
    """All outputs of up to three tokens; the first model reads a field, the second another one, and a third nothing."""
    models = [tiny(name, seed) for seed, name in enumerate((*names, "transformer_lm_tiny"))]
    members, settings, formula = MIXED[how]
    keys = {"member_sources": ["field1", "field2", "empty"][:members], **settings(models[1])}
    found = Translator(models[:members], beam=90, nbest=90, max_len_a=0, max_len_b=3, batch_size=2, **keys).translate(
        TWO_FIELDS
    )
    each = [[next_scores(*pair) for pair in zip(models, [*line.split("\t"), ""], strict=True)] for line in TWO_FIELDS]
    for number, one in enumerate(found):
        expected = ranked_outputs(
            lambda line, history: formula(*(known(history) for known in each[line[0]])), (number,), 6, 3, 90
        )
        assert len(expected) == 4 + 16 + 64
        assert_same_pairs(as_pairs(one.hypotheses), expected)


@pytest.mark.parametrize("_kind", ["llama"], indirect=True)
@pytest.mark.parametrize("names", [("llama_tiny", "t5_tiny"), ("transformer_tiny", "llama_tiny")], ids="-".join)
def test_one_kind_drafts_for_the_other(names: tuple[str, str]) -> None:
    """Greedy outputs are those without drafts, and each output is drawn with its probability under the model."""
    model, draft = (tiny(name, seed) for seed, name in enumerate(names, start=1))
    lines = ["w0 w1 w1", "w1", "w0 w0 w0 w1 w1 w0"]
    translator = Translator(model, draft="other", beam=1, max_len_a=0, max_len_b=12)
    translator._drafts = {"other": draft}
    for size in (1, 3):
        expected = translator.translate(lines, draft="", batch_size=size)
        assert_same(translator.translate(lines, batch_size=size), expected)
    assert 0 < translator.prepare(batch_size=3).generator.setup.search.acceptance_rate < 1
    keys = {"draft": "itself", "member_sources": ["field2"]}  # which the draft reads, too
    translator._drafts |= {"itself": model}
    assert_same(translator.translate([f"w1\t{line}" for line in lines], batch_size=3, **keys), expected)
    assert translator.prepare(batch_size=3, **keys).generator.setup.search.acceptance_rate == 1
    keys = {"sampling": True, "beam": 500, "nbest": 500, "max_len_b": 2}
    for line, one in zip(lines, translator.translate(lines, **keys), strict=True):
        known, drawn = next_scores(model, line, 2), Counter(tuple(item.tokens.tolist()) for item in one.hypotheses)

        def scores(source: tuple[int, ...], history: tuple[int, ...], known: Any = known) -> Tensor:
            forbidden = torch.tensor([1] if history else [1, 2])
            return known(history).index_fill(0, forbidden, -torch.inf).log_softmax(-1) * (len(history) < 2)

        wanted = {tokens: math.exp(score * len(tokens)) for tokens, score in ranked_outputs(scores, (), 6, 2, 20)}
        assert drawn.keys() <= wanted.keys()
        counts = torch.tensor([drawn[output] for output in wanted])
        assert abs(chi_square(counts, torch.tensor([*wanted.values()]))) < 4


@pytest.mark.parametrize(("learned", "batch_size"), [(False, 8), (True, 1)])
def test_prompt_and_output_together_end_at_the_models_positions(learned: bool, batch_size: int) -> None:
    item = language_model(decoder_learned_pos=learned, max_target_positions=10)
    prompts = ["w1", "w1 " * 7, "w2 " * 9, "w2 " * 10, ""]
    translator = Translator(item, beam=2, suppress=["w0"], batch_size=batch_size, min_len=50)
    rooms = []
    for translation in translator.translate(prompts):
        prompt = item.task.encode_source(translation.source)
        rooms.append(len(translation.hypotheses[0].tokens) if translation.hypotheses else 0)
        if len(prompt) <= 10:
            assert len(prompt) + rooms[-1] == 10 + 1  # the last column predicts end-of-sentence
            assert "maximum length" in translation.notes[-1]
        else:
            assert translation.text == ""
            assert translation.notes == ["the prompt has 11 tokens and the model 10 positions, so the output is empty"]
    assert rooms == [9, 3, 1, 0, 10]
    both = Translator([item, item], member_sources=["field1", "field2"]).prepare()
    sources = [item.task.encode_source(text) for text in ("w1 w2", "w1 " * 6)]
    lengths = [both.input_encoder.longest_output(order) for order in (sources, sources[::-1])]
    assert lengths == [10 - max(map(len, sources))] * 2, "the longer prompt counts"


def tokenizer_named(name: str) -> Tokenizer:
    if name == "bytes":
        return make_tokenizer(byte_files())
    lines = [text for pair in sentences(0, 50) for text in pair] + ["hört Bäume, süße"]
    model = train_sentencepiece(lines, vocab_size=60, model_type=name, hard_vocab_limit=False, special_ids=FAIRSEQ_IDS)
    return SentencePieceTokenizer(model)


@pytest.mark.parametrize("name", ["unigram", "bpe", "bytes"])
def test_prompt_and_continuation_together_are_the_whole_text(name: str) -> None:
    item = language_model(tokenizer=tokenizer_named(name), max_target_positions=60)
    prompts = ["the dog sees a", "der Ba", "süße Bäume", ""]
    translations = Translator(item, sampling=True, beam=12, nbest=12, temperature=4.0, max_len_b=12).translate(prompts)
    spaces = 0
    for translation in translations:
        for hypothesis in translation.hypotheses:
            ids = [*item.task.source_tokenizer.encode(translation.source), *hypothesis.tokens.tolist()]
            assert translation.source + hypothesis.text == item.task.target_tokenizer.decode(ids)
            spaces += hypothesis.text.startswith(" ")
    assert name == "bytes" or 0 < spaces < 36  # some begin a new word, and some do not


def test_streamed_words_are_the_final_text() -> None:
    """Those that continue a prompt begin with a space."""
    pieces: dict[int, str] = defaultdict(str)

    class Words(WordStreamer):
        def on_text(self, sentence: int, text: str, last: bool) -> None:
            pieces[sentence] += text

    found = Translator(language_model(), max_len_b=9).translate(PROMPTS, streamer=Words())
    assert [pieces[line] for line in range(len(PROMPTS))] == [translation.text for translation in found]
    assert {text[0] for text in pieces.values()} == {" ", "w"}


# ---- running text


LINES = ["w1 w5 w8", "", "w3 w3 w17 w3 w5 w9 w11", "w4", "w0 w18"]


@pytest.mark.parametrize(("size", "context", "models"), [(1, 0, 2), (5, 0, 1), (5, 2, 2), (6, 5, 1), (24, 20, 2)])
def test_running_text_is_scored_as_by_a_loop_over_its_tokens(size: int, context: int, models: int) -> None:
    items = [language_model(seed) for seed in range(models)]
    text = [2, *(token for line in LINES for token in items[0].task.encode_target(line).tolist())]
    expected = []
    for i in range(1, len(text)):  # token i is predicted from the context of its block, and the block up to it
        begin = (i - 1) // (size - context) * (size - context)
        window = text[max(0, begin - context) : i + 1]
        each = torch.stack([plain_lprobs(item.model, window)[-1] for item in items])
        expected.append(float(each.exp().mean().log()))
    for batch_size in (1, 3, 64):
        scored = list(
            Translator(items).score_text(LINES, tokens_per_sample=size, context_window=context, batch_size=batch_size)
        )
        assert [token for line in scored for token in line.tokens.tolist()] == text[1:]
        found = [score for line in scored for score in line.positional_scores.tolist()]
        assert found == pytest.approx(expected, abs=1e-5)
        assert scored[2].score == pytest.approx(float(scored[2].positional_scores.mean()))


@pytest.mark.parametrize(("own", "rate"), [(None, 0.3), (0.0, 0.0), (0.5, 0.5)])
def test_embeddings_may_have_a_dropout_of_their_own(own: float | None, rate: float) -> None:
    decoder = registered("transformer_lm_tiny", dropout=0.3, embedding_dropout=own)().decoder
    assert decoder.dropout.p == rate
    assert decoder.layers[0].dropout.p == 0.3


def test_the_least_length_of_prompt_and_output_counts_no_padding() -> None:
    """In a batch of prompts of other lengths; the end is so likely that every output has the least length."""
    end = {"exponential_decay_start": 1, "exponential_decay_factor": 99.0}
    translator = Translator(language_model(), beam=1, min_total_len=10, max_len_b=12, **end)
    found = translator.translate(PROMPTS)
    assert tokens_of(found) == tokens_of([translator.translate([prompt])[0] for prompt in PROMPTS])
    sizes = {len(one.source.split()) + len(one.hypotheses[0].tokens) for one in found}
    assert len(sizes) == 1, sizes


def test_beams_share_the_pass_of_their_prompt() -> None:
    """Each prompt is computed once, unless somebody watches the layers; the outputs are the same."""
    model = language_model()
    rows: list[int] = []
    transform = model.model.decoder.transform
    model.model.decoder.transform = lambda tokens, *given: rows.append(len(tokens)) or transform(tokens, *given)  # type: ignore[method-assign,misc]
    keys = {"beam": 3, "nbest": 3, "max_len_a": 0.0, "max_len_b": 7, "batch_size": 5}
    shared = Translator(model, **keys).translate(PROMPTS)
    first, handle = rows[0], model.model.decoder.layers[0].register_forward_hook(lambda *_: None)
    rows.clear()
    apart = Translator(model, **keys).translate(PROMPTS)
    handle.remove()
    assert (first, rows[0]) == (5, 15)
    for one, other in zip(shared, apart, strict=True):
        assert [h.text for h in one.hypotheses] == [h.text for h in other.hypotheses]
        torch.testing.assert_close([h.score for h in one.hypotheses], [h.score for h in other.hypotheses])
