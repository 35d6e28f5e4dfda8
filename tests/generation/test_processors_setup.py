"""From keys to processors: the order of each toolkit, texts and tokens, and what does not go together."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.config.generation import KEYS_OF_ADDONS, keys_tagged
from seqgen.config.options import WARPER
from seqgen.config.settings import Settings
from seqgen.config.values import check_compatible, incompatible, sentence_of
from seqgen.core.context import StepContext
from seqgen.core.errors import ConfigError
from seqgen.core.processors import LogitsProcessor, apply_all
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.data.dictionary import Dictionary
from seqgen.decoding.building import Resources
from seqgen.decoding.fairseq_arguments import fairseq_generator
from seqgen.decoding.options import build_setup, processors_from_config
from seqgen.decoding.resolution import resolve
from seqgen.decoding.rules import FAIRSEQ, HUGGINGFACE, Rules, rules_named
from seqgen.decoding.search.diverse import DiverseBeamSearch
from seqgen.registry import LOGITS_PROCESSORS, SEARCHES, register_logits_processor
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.step_contexts import step_context

VOCAB, MAXIMUM = 14, 6


def words() -> Dictionary:
    """T5's special ids and single letters."""
    return Dictionary(["<pad>", "</s>", "<unk>", *"abcdefghijk"], pad=0, eos=1, unk=2, bos=None)


def encode(text: str) -> list[int]:
    return [words().index(letter) for letter in text]


def processors_of(cfg: GenerationConfig, rules: Rules) -> list[LogitsProcessor]:
    return processors_from_config(cfg, rules, dataclasses.replace(Resources.of(cfg, words(), None), encode=encode))


def context(step: int, seed: int, beam: int) -> StepContext:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 7, (2 * beam, step), generator=generator)
    source = torch.randint(3, VOCAB - 1, (2, 4), generator=generator).repeat_interleave(beam, 0)
    return step_context(
        step, tokens, torch.full((2 * beam,), MAXIMUM), MAXIMUM, None, 1, 0,
        torch.cat([torch.zeros(2 * beam, 1, dtype=torch.int64), tokens], dim=1), source,
    )  # fmt: skip


# ours and theirs
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "penalties": (
        {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "sequence_bias": ["b=1.5", "ab=-2"], "min_len": 3},
        {
            "repetition_penalty": 1.4,
            "no_repeat_ngram_size": 2,
            "sequence_bias": [[[4], 1.5], [[3, 4], -2.0]],
            "min_length": 4,
        },
    ),
    "forced": (
        {
            "forced_first": "c", "forced_last": "d", "suppress": ["c", "e"], "suppress_at_begin": ["f"], "min_len": 0,
            "remove_invalid": True,
        },
        {
            "forced_bos_token_id": 5, "forced_eos_token_id": 6, "suppress_tokens": [5, 7], "begin_suppress_tokens": [8],
            "max_length": MAXIMUM + 2, "remove_invalid_values": True,
        },
    ),
    "source": (
        {
            "encoder_no_repeat_ngram_size": 2, "bad_words": ["ab", "c"], "repetition_penalty": 0.7, "min_len": 0,
            "exponential_decay_start": 1, "exponential_decay_factor": 1.2, "end_symbols": ["k"], "renormalize": True,
        },
        {
            "encoder_no_repeat_ngram_size": 2, "bad_words_ids": [[3, 4], [5]], "repetition_penalty": 0.7,
            "exponential_decay_length_penalty": (1, 1.2), "eos_token_id": [1, 13], "renormalize_logits": True,
        },
    ),
    "source, one beam": (
        {"encoder_repetition_penalty": 1.3, "repetition_penalty": 1.3, "min_len": 2, "beam": 1},
        {"encoder_repetition_penalty": 1.3, "repetition_penalty": 1.3, "min_new_tokens": 2, "num_beams": 1},
    ),
    "sampling": (
        {
            "sampling": True, "temperature": 0.7, "top_k": 8, "top_p": 0.9, "min_p": 0.02,
            "typical_p": 0.95, "epsilon_cutoff": 0.01, "eta_cutoff": 0.02, "renormalize": True, "beam": 1, "min_len": 1,
        },
        {
            "do_sample": True, "temperature": 0.7, "top_k": 8, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95,
            "epsilon_cutoff": 0.01, "eta_cutoff": 0.02, "renormalize_logits": True, "num_beams": 1, "min_length": 2,
        },
    ),
    "beam sampling": (
        {
            "sampling": True, "search": "beam_sampling", "top_k": 1, "top_p": 0.1, "typical_p": 0.1,
            "end_symbols": ["k"], "beam": 2, "min_len": 0,
        },
        {"do_sample": True, "top_k": 1, "top_p": 0.1, "typical_p": 0.1, "eos_token_id": [1, 13], "num_beams": 2},
    ),
    "nothing": ({"min_len": 0}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(SETTINGS))
def test_the_whole_chain_equals_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    ours, theirs = SETTINGS[name]
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=VOCAB, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2)
    )
    config = transformers.GenerationConfig(
        **{"num_beams": 2, "top_k": None, "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0, **theirs}
    )
    model._prepare_special_tokens(config, True, device="cpu")
    cfg = GenerationConfig(**{"semantics": "huggingface", "beam": 2, **ours})
    check_compatible(cfg)
    chain = processors_of(cfg, HUGGINGFACE)
    changed = False
    for seed in range(8):
        for step in range(MAXIMUM + 1):
            now = context(step, seed, cfg.beam)
            given = torch.randn(2 * cfg.beam, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
            original = model._get_logits_processor(
                config, 1, now.src_tokens[:: cfg.beam], None, transformers.LogitsProcessorList(), "cpu", {}
            )
            wanted = original(now.generated, given.clone())
            lowest = torch.finfo(wanted.dtype).min
            wanted = wanted.masked_fill(wanted == lowest, -torch.inf)  # what their removal of infinities leaves
            got = apply_all(chain, given.clone(), now)
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
            changed |= not torch.equal(given, got)
    assert changed == (name != "nothing")


def chain(semantics: str = "fairseq", **values: Any) -> list[LogitsProcessor]:
    return processors_of(GenerationConfig(**values), rules_named(semantics))


def names(processors: list[LogitsProcessor]) -> list[str]:
    return [type(processor).__name__ for processor in processors]


def test_temperature_belongs_to_the_cutoffs_by_hugging_faces_rules_alone() -> None:
    cfg = GenerationConfig(sampling=True, temperature=2.0, top_k=3)
    assert names(processors_of(cfg, FAIRSEQ))[-2:] == ["ForcePrefix", "TopK"]
    assert names(processors_of(cfg, HUGGINGFACE)) == ["ForcePrefix", "Temperature", "TopK"]
    plain = processors_of(GenerationConfig(temperature=2.0), HUGGINGFACE)
    assert names(plain) == ["ForcePrefix"]


def test_biases_of_one_text_add_up() -> None:
    found = chain("huggingface", sequence_bias=["a=1.5", "a=2", "ids:3=-1"], min_len=0)
    assert apply_all(found, torch.zeros(2, VOCAB), context(0, 0, 1))[0, 3] == 2.5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"suppress": ["<unkk>"]}, r"generation.suppress: '<unkk>' is not in .* vocabulary \(did you mean '<unk>'"),
        ({"bad_words": [""]}, "generation.bad_words: '' is empty"),
        ({"bad_words": ["ids:3 999"]}, "generation.bad_words: 'ids:3 999' must have ids from 0 to"),
        ({"bad_words": ["az"]}, "generation.bad_words: 'az' has words or characters that are not in the target"),
        ({"sequence_bias": ["ab=much"]}, "generation.sequence_bias: 'ab=much' is not TEXT=BIAS"),
        ({"sequence_bias": ["ab=-inf"]}, "add it to generation.bad_words"),
        ({"processors": ["no_such"]}, "there is no logits processor 'no_such'"),
    ],
)  # fmt: skip
def test_wrong_values_end_in_one_sentence(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chain(**values)


def test_end_tokens() -> None:
    resources = Resources.of(GenerationConfig(end_symbols=["k", "</s>", "k"]), words(), None)
    assert resources.extra_end_tokens == [13]
    with pytest.raises(ConfigError, match=r"generation.end_symbols: 'zz'"):
        Resources.of(GenerationConfig(end_symbols=["zz"]), words(), None)


@pytest.fixture
def registered() -> Any:
    @dataclasses.dataclass
    class LouderConfig:
        gain: float = 2.0

    @register_logits_processor("louder", config=LouderConfig, presets={"loudest": LouderConfig(gain=9.0)})
    class Louder(LogitsProcessor):
        def __init__(self, gain: float):
            self.gain = gain

        def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
            return lprobs * self.gain

    @register_logits_processor("impostor")
    class Impostor:
        pass

    yield
    for name in ("louder", "impostor"):
        del LOGITS_PROCESSORS._entries[name]
    del LOGITS_PROCESSORS._entries["loudest"]


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_processors_of_a_users_own(registered: None, semantics: str) -> None:
    found = chain(semantics, processors=["louder", "loudest"], min_len=0)
    assert apply_all(found, torch.ones(2, VOCAB), context(0, 0, 1))[0, 5] == 18.0
    with pytest.raises(ConfigError, match=r"'impostor' .* does not subclass LogitsProcessor"):
        chain(semantics, processors=["impostor"])


class Louder(LogitsProcessor):
    """Doubles the scores."""

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        return lprobs * 2


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_processors_are_added_to_those_of_the_configuration(semantics: str) -> None:
    vocabulary = dictionary(5)
    model = ScriptedModel(random_rule(9, 3))
    keys = {"min_len": 3, "unkpen": 1.5, "no_repeat_ngram_size": 2, "suppress": ["w1"], "beam": 3, "max_len_b": 6}
    cfg = GenerationConfig(**keys, semantics=semantics)
    setup = build_setup([model], vocabulary, cfg, processors=[Louder()])
    assert [type(processor) for processor in setup.processors].index(Louder) == len(setup.processors) - 1
    results = SequenceGenerator(setup).generate(batch_of([(4, 5, 2), (6, 2)]), torch.tensor([[5], [6]]))
    for first, hypotheses in zip((5, 6), results, strict=True):
        for tokens in (h.tokens.tolist() for h in hypotheses):
            assert len(tokens) > 3
            assert tokens[0] == first
            assert vocabulary.index("w1") not in tokens[1:]
            assert len(set(itertools.pairwise(tokens))) == len(tokens) - 1


def test_the_arguments_of_fairseq_are_keys() -> None:
    vocabulary, model, search = dictionary(5), ScriptedModel(random_rule(9, 3)), DiverseBeamSearch(2, 0.5)
    found = fairseq_generator(
        [model], vocabulary, 4, 0.5, 6, 5, 2, len_penalty=0.7, unk_penalty=1.5, temperature=1.3,
        no_repeat_ngram_size=3, search_strategy=search, tokens_to_suppress=["w1"],
    ).setup  # fmt: skip
    cfg = GenerationConfig(
        beam=4, max_len_a=0.5, max_len_b=6, max_len=5, min_len=2, length_penalty=0.7, unkpen=1.5, temperature=1.3,
        no_repeat_ngram_size=3, suppress=["w1"],
    )  # fmt: skip
    wanted = build_setup([model], vocabulary, cfg, search_strategy=search)
    for name in ("search", "rules", "limits", "ranking", "beam_size", "temperature"):
        assert getattr(found, name) == getattr(wanted, name), name
    batch = batch_of([(4, 5, 2), (6, 2)])
    for one, other in zip(*(SequenceGenerator(setup).generate(batch) for setup in (found, wanted)), strict=True):
        assert [(h.tokens.tolist(), h.score) for h in one] == [(h.tokens.tolist(), h.score) for h in other]
    plain = fairseq_generator([model], vocabulary, normalize_scores=False, match_source_len=True).setup
    assert (plain.beam_size, plain.ranking.normalize, plain.limits.match_source_len) == (1, False, True)
    assert plain.limits == fairseq_generator([model], vocabulary, match_source_len=True).setup.limits
    with pytest.raises(ConfigError, match=r"beam=0 is below its minimum, 1"):
        fairseq_generator([model], vocabulary, beam_size=0)


REFUSED = [
    ({"top_k": 5}, "generation.top_k=5 truncates the distribution for sampling"),
    ({"sampling": True, "search": "diverse_beam"}, "generation.sampling=true draws at random, and the strategy"),
    ({"constraints": "ordered", "search": "sampling", "top_k": 3}, "truncate the distribution"),
    ({"constraints": "ordered", "beam": 1}, "with one beam would begin every output with the phrases"),
    ({"draft_tokens": 3}, "has no effect without a draft"),
    ({"draft": "runs/x", "prompt_lookup": 2}, "both draft; choose one"),
    ({"prompt_lookup": 2, "constraints": "ordered"}, "exclude; choose one"),
    ({"draft": "runs/x", "constraints": "ordered"}, "exclude; choose one"),
    ({"mbr": "chrf", "rerank": "length_ratio"}, "and generation.mbr both rank the hypotheses"),
    ({"mbr": "chrf", "beam": 1}, "compares hypotheses, but only one is generated"),
    ({"exponential_decay_start": 3}, "has no effect without generation.exponential_decay_factor"),
    ({"early_stopping": "true"}, "belongs to Hugging Face's rules"),
    ({"forced_last": "a"}, "belongs to Hugging Face's rules"),
    ({"length_penalty": 0.5, "normalize_scores": False}, "has no effect with generation.normalize_scores=false"),
    ({"max_len_b": 50, "match_source_len": True}, "has no effect with generation.match_source_len=true"),
    ({"min_len": 9, "max_len": 8}, "generation.min_len=9 is more than generation.max_len allows"),
    ({"min_len": 9, "max_len_b": 8}, "generation.min_len=9 is more than generation.max_len_b allows"),
    ({"min_total_len": 2, "match_source_len": True}, "min_total_len=2 has no effect with generation.match_source_len"),
    ({"seed": 7}, "generation.seed=7 has no effect, because the search strategy does not use it"),
    ({"seed": 7, "search": "a_users_own", "sampling": True}, "generation.seed=7 has no effect"),
    ({"beam": 3, "search": "greedy"}, "generation.beam=3 has no effect, because greedy and contrastive search"),
    ({"early_stopping": "true", "semantics": "huggingface", "beam": 1}, "determines when enough competing"),
    ({"nbest": 6}, "generation.nbest=6 is more than generation.beam"),
    ({"nbest": 2, "search": "greedy"}, "generation.nbest=2 is more than 1"),
    ({"temperature": 2.0, "semantics": "huggingface"}, "affects only sampling under Hugging Face's rules"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_does_not_go_together(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_compatible(GenerationConfig(**values))


@pytest.mark.parametrize("search", ["greedy", "contrastive"])
def test_the_default_beam_is_refused_too_if_the_user_gives_it(search: str) -> None:
    for beam in (4, 5):
        with pytest.raises(ConfigError, match=f"generation.beam={beam} has no effect, because greedy"):
            resolve(Settings().with_layer("user", {"search": search, "beam": beam}))
    assert resolve(Settings().with_layer("user", {"search": search}), [{"beam": 5}]).generation.search == search


def test_a_beam_of_the_user_replaces_the_greedy_search_of_a_model() -> None:
    for beam in (4, 5):
        found = resolve(Settings().with_layer("user", {"beam": beam}), [{"search": "greedy"}]).generation
        assert (found.search, found.beam) == ("", beam)


def test_every_built_in_strategy_declares_whether_it_is_stochastic() -> None:
    built_in = [entry.name for entry in SEARCHES.entries() if not entry.is_user_own]
    declared = {name: GenerationConfig(search=name).declared("is_stochastic", None) for name in built_in}
    assert {name for name, value in declared.items() if value} == {"sampling", "beam_sampling"}
    assert None not in declared.values()


def test_every_need_is_tested() -> None:
    found = {reason for values, _ in REFUSED for _, reason in incompatible(GenerationConfig(**values))}
    fields = [each for each in dataclasses.fields(GenerationConfig) if each.name not in KEYS_OF_ADDONS]
    needs = [need for field in fields for need in field.metadata["needs"]]
    assert {sentence_of(need) for need in needs} == found


@pytest.mark.parametrize(
    "values",
    [
        *({key: 0.5 if key != "top_k" else 3, "sampling": True} for key in keys_tagged(WARPER)),
        {"top_k": 3, "search": "beam_sampling"},
        {"seed": 7, "search": "beam_sampling"},
        {"early_stopping": "true", "semantics": "huggingface", "beam": 2},
        {"min_len": 9, "max_len_a": 1.0, "max_len_b": 2},
        {"min_len": 0, "match_source_len": True},
        {"temperature": 2.0},
        {"prompt_lookup": 2, "draft_tokens": 3},
    ],
    ids=str,
)
def test_what_does(values: dict[str, Any]) -> None:
    check_compatible(GenerationConfig(**values))
