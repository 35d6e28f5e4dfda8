"""From keys to components: the order of processors of each toolkit, texts and tokens, and what goes together."""

import dataclasses
import itertools
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from seqgen.addons.fairseq import fairseq_generator
from seqgen.config.settings import Settings
from seqgen.config.values import check_compatible
from seqgen.core.processors import LogitsProcessor, apply_all
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.decoding.options import build_setup, processors_from_config
from seqgen.decoding.resolution import resolve
from seqgen.decoding.rules import FAIRSEQ, HUGGINGFACE, Rules, rules_named
from seqgen.decoding.search.diverse import DiverseBeamSearch
from seqgen.extend import ConfigError, Dictionary, GenerationConfig, Resources, StepContext, Translation
from seqgen.registry import LOGITS_PROCESSORS, register_logits_processor
from seqgen.text.translator import Translator
from tests.hypotheses import assert_same
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.step_contexts import step_context
from tests.text_models import TEXTS, text_model

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
    begun = torch.cat([torch.zeros(2 * beam, 1, dtype=torch.int64), tokens], dim=1)
    limits = {"max_lengths": torch.full((2 * beam,), MAXIMUM), "eos": 1, "pad": 0}
    return step_context(step, tokens, begun, MAXIMUM, **limits, src_tokens=source)


# ours and theirs
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
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
    for seed, step in itertools.product(range(4), range(MAXIMUM + 1)):
        now = context(step, seed, cfg.beam)
        given = torch.randn(2 * cfg.beam, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
        sources, own = now.src_tokens[:: cfg.beam], transformers.LogitsProcessorList()
        original = model._get_logits_processor(config, 1, sources, None, own, "cpu", {})
        wanted = original(now.generated, given.clone())
        # the lowest number is what their removal of infinities leaves
        wanted = wanted.masked_fill(wanted == torch.finfo(wanted.dtype).min, -torch.inf)
        got = apply_all(chain, given.clone(), now)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
        changed |= not torch.equal(given, got)
    assert changed


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


@dataclasses.dataclass
class LouderConfig:
    gain: float = 2.0


@dataclasses.dataclass(eq=False)
class Louder(LogitsProcessor):
    gain: float = 2.0

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        return lprobs * self.gain


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_processors_of_a_users_own(semantics: str) -> None:
    with mock.patch.dict(LOGITS_PROCESSORS._entries):
        loudest = {"loudest": LouderConfig(gain=9.0)}
        register_logits_processor("louder", config=LouderConfig, presets=loudest)(Louder)
        register_logits_processor("impostor")(type("Impostor", (), {}))
        found = chain(semantics, processors=["louder", "loudest"], min_len=0)
        assert apply_all(found, torch.ones(2, VOCAB), context(0, 0, 1))[0, 5] == 18.0
        with pytest.raises(ConfigError, match=r"'impostor' .* does not subclass LogitsProcessor"):
            chain(semantics, processors=["impostor"])


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
    assert_same(*(SequenceGenerator(setup).generate(batch) for setup in (found, wanted)))
    plain = fairseq_generator([model], vocabulary, normalize_scores=False, match_source_len=True).setup
    assert (plain.beam_size, plain.ranking.normalize, plain.limits.match_source_len) == (1, False, True)


def test_a_beam_of_the_user_replaces_the_greedy_search_of_a_model() -> None:
    for beam in (4, 5):
        found = resolve(Settings().with_layer("user", {"beam": beam}), [{"search": "greedy"}]).generation
        assert (found.search, found.beam) == ("", beam)


def outputs(translations: list[Translation]) -> list[list[tuple[list[int], float]]]:
    return [[(h.tokens.tolist(), pytest.approx(h.score, abs=1e-9)) for h in t.hypotheses] for t in translations]


@pytest.mark.parametrize(
    ("one", "other"),
    [({"constraints": ""}, {"search": "beam"}), ({"sampling": True, "seed": 7}, {"search": "sampling", "seed": 7})],
)
def test_a_strategy_that_is_chosen_in_two_ways_is_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    translator = Translator(text_model(), beam=4, nbest=4, max_len_b=9, min_len=0)
    assert outputs(translator.translate(TEXTS, **one)) == outputs(translator.translate(TEXTS, **other))
    if "seed" in one:
        assert outputs(translator.translate(TEXTS, **one)) != outputs(translator.translate(TEXTS, **{**one, "seed": 8}))


def test_weights_of_the_combination_stay_if_its_default_is_named() -> None:
    translator = Translator([text_model(), text_model("fconv_tiny")], max_len=6, **{"combination.weights": [0.9, 0.1]})
    assert outputs(translator.translate(TEXTS, combination="probability")) == outputs(translator.translate(TEXTS))
    assert "combination.weights" not in translator.settings(combination="logit").components
