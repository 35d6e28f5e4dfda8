"""Components by name and with keys of their own: the built-in ones use the mechanism that a user's do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seqgen.errors import ConfigError, DataError
from seqgen.generation.options import FLAT_KEYS
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.registry import COMBINATIONS, LOGITS_PROCESSORS, SEARCHES, STOPPING_RULES
from seqgen.text.results import Translation
from seqgen.text.translator import Translator
from tests.covering import covering
from tests.text_models import TEXTS, text_model


def outputs(translations: list[Translation]) -> list[list[tuple[list[int], float]]]:
    return [[(h.tokens.tolist(), pytest.approx(h.score, abs=1e-9)) for h in t.hypotheses] for t in translations]


@pytest.mark.parametrize(
    ("flat", "own"),
    [
        ({"no_repeat_ngram_size": 2}, {"processors": ["no_repeat_ngram"], "processor.no_repeat_ngram.size": 2}),
        (
            {"repetition_penalty": 1.7},
            {"processors": ["repetition_penalty"], "processor.repetition_penalty.penalty": 1.7},
        ),
        ({"diverse_beam_groups": 2, "diverse_beam_strength": 0.9}, {"search": "diverse_beam", "search.strength": 0.9}),
        ({"diversity_rate": 0.4}, {"search": "diverse_siblings", "search.rate": 0.4}),
        ({"constraints": ""}, {"search": "beam"}),
        (
            {"sampling": True, "sampling_topk": 3, "seed": 7},
            {"search": "sampling", "search.seed": 7, "processors": ["top_k"], "processor.top_k.k": 3},
        ),
    ],
)
def test_flat_keys_and_own_keys_are_the_same(flat: dict[str, Any], own: dict[str, Any]) -> None:
    translator = Translator(text_model(), beam=4, nbest=4, max_len_b=9, min_len=0)
    assert outputs(translator.translate(TEXTS, **flat)) == outputs(translator.translate(TEXTS, **own))
    plain = outputs(translator.translate(TEXTS))
    assert (outputs(translator.translate(TEXTS, **own)) == plain) == (own == {"search": "beam"}), (
        "the keys do something"
    )


PROCESSORS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "unkpen": ({"unkpen": -3.0}, {"penalty": -3.0}),
    "sequence_bias": ({"sequence_bias": ["WORD=-4", "WORD=-1"]}, {"biases": ["WORD=-4", "WORD=-1"]}),
    "encoder_repetition_penalty": ({"encoder_repetition_penalty": 1.9}, {"penalty": 1.9}),
    "repetition_penalty": ({"repetition_penalty": 1.7}, {"penalty": 1.7}),
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 2}, {"size": 2}),
    "encoder_no_repeat_ngram_size": ({"encoder_no_repeat_ngram_size": 1}, {"size": 1}),
    "bad_words": ({"bad_words": ["WORD"]}, {"texts": ["WORD"]}),
    "min_len": ({"min_len": 5}, {"min_len": 5}),
    "min_total_len": ({"min_total_len": 5}, {"min_len": 5, "counts_prompt": True}),
    "prefix_trie": ({"prefix_trie": "FILE"}, {"file": "FILE"}),
    "forced_first": ({"forced_first": "WORD"}, {"token": "WORD"}),
    "forced_last": ({"forced_last": "WORD"}, {"token": "WORD"}),
    "exponential_decay_factor": (
        {"exponential_decay_start": 1, "exponential_decay_factor": 1.6},
        {"start": 1, "factor": 1.6},
    ),
    "suppress": ({"suppress": ["WORD"]}, {"tokens": ["WORD"]}),
    "suppress_at_begin": ({"suppress_at_begin": ["WORD"]}, {"tokens": ["WORD"]}),
    "temperature": ({"temperature": 3.0}, {"temperature": 3.0}),
    "sampling_topk": ({"sampling_topk": 2}, {"k": 2}),
    "sampling_topp": ({"sampling_topp": 0.2}, {"p": 0.2}),
    "min_p": ({"min_p": 0.7}, {"p": 0.7}),
    "typical_p": ({"typical_p": 0.2}, {"mass": 0.2}),
    "epsilon_cutoff": ({"epsilon_cutoff": 0.2}, {"epsilon": 0.2}),
    "eta_cutoff": ({"eta_cutoff": 0.5}, {"epsilon": 0.5}),
    "renormalize": ({"renormalize": True}, {}),
    "remove_invalid": ({"remove_invalid": True}, {}),
}
"""Flat keys, and the values of the processors that they ask for."""

DRAWN = ("temperature", "sampling_topk", "sampling_topp", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


@pytest.mark.parametrize(("key", "semantics"), covering(list(PROCESSORS), ["fairseq", "huggingface"]))
def test_a_flat_key_and_its_processor_give_the_same(key: str, semantics: str, tmp_path: Path) -> None:
    if (key, semantics) in {("forced_last", "fairseq"), ("temperature", "fairseq")}:
        return  # the one is refused, the other is no processor
    model = text_model()
    translator = Translator(model, beam=3, nbest=3, max_len_b=7, min_len=0, semantics=semantics)
    further: dict[str, Any] = {"sampling": True, "seed": 5} if key in DRAWN else {}
    if key == "renormalize":  # has an effect on what other processors have changed
        further["repetition_penalty"] = 1.5
    if key in ("min_len", "min_total_len"):  # has an effect on outputs that end early
        further["end_symbols"] = [f"w{number}" for number in range(10)]
    plain = translator.translate(TEXTS, **further)
    word = plain[0].hypotheses[0].text.split()[0]
    (tmp_path / "allowed").write_text("".join(f"{h.text}\n" for t in plain for h in t.hypotheses[1:]))
    known = {"WORD": word, "FILE": str(tmp_path / "allowed")}
    flat, values = ({name: _filled(value, known) for name, value in side.items()} for side in PROCESSORS[key])
    name = FLAT_KEYS[key].partition(".")[0]
    own = {"processors": [name], **{f"processor.{name}.{field}": value for field, value in values.items()}}
    found = outputs(translator.translate(TEXTS, **further, **flat))
    assert found == outputs(translator.translate(TEXTS, **further, **own))
    assert (found == outputs(plain)) == (key == "remove_invalid"), "the key does something"


def _filled(value: Any, known: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_filled(item, known) for item in value]
    for name, text in known.items():
        value = value.replace(name, text) if isinstance(value, str) else value
    return value


def test_every_flat_key_of_a_processor_is_tested() -> None:
    assert set(PROCESSORS) == set(FLAT_KEYS) - {"match_source_len"}  # which also limits the length


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("forbid", {}, "processor.forbid: no tokens are given"),
        ("forbid_first", {"tokens": ["zz!"]}, "processor.forbid_first: 'zz!' is not in the target vocabulary"),
        ("force_first", {"token": "zz!"}, "processor.force_first: 'zz!' is not in the target vocabulary"),
        ("bad_words", {}, "processor.bad_words: no texts are given"),
        ("sequence_bias", {"biases": ["a"]}, "processor.sequence_bias: 'a' is not TEXT=BIAS"),
        ("prefix_trie", {}, "processor.prefix_trie: no file is given"),
        ("prefix_trie", {"file": "no/such/file"}, "processor.prefix_trie: .*no/such/file"),
        ("minimum_length", {"min_len": -1}, "min_len=-1 is below its minimum"),
        ("minimum_length", {"min_lem": 1}, "unknown key 'min_lem'.*did you mean 'min_len'"),
        ("force_last", {"token": "a"}, "generation.processors=.*force_last.* belongs to Hugging Face's rules"),
    ],
)
def test_values_of_processors_are_checked(name: str, values: dict[str, Any], words: str) -> None:
    keys = {"processors": [name], **{f"processor.{name}.{field}": value for field, value in values.items()}}
    with pytest.raises((ConfigError, DataError), match=words):
        Translator(text_model(), semantics="fairseq").translate(TEXTS, **keys)


def test_what_is_built_in_is_registered() -> None:
    assert {"beam", "greedy", "sampling", "exact"} <= set(SEARCHES.names())
    assert {"probability", "log", "product", "fusion"} <= set(COMBINATIONS.names())
    assert {"no_repeat_ngram", "top_p", "eta", "temperature"} <= set(LOGITS_PROCESSORS.names())
    assert "time_limit" in STOPPING_RULES.names()
    for entry in LOGITS_PROCESSORS.entries():
        if entry.component.__module__.startswith("seqgen."):
            assert issubclass(entry.component, LogitsProcessor)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"search": "diverse_beam", "search.grups": 2}, "unknown key 'grups'.*did you mean 'groups'"),
        ({"search": "diverse_beam", "search.groups": 0}, "groups=0 is below its minimum"),
        ({"search": "diverse_beam", "search.groups": "two"}, "groups='two' should be a whole number"),
        ({"search.groups": 2}, "does not name its search strategy|unknown key 'groups'"),
        ({"processor.top_k.k": 3}, r"has no effect.*set generation\.processors=\[top_k\]"),
        ({"serach.groups": 2}, "unknown key 'serach.groups'.*did you mean 'search'"),
    ],
)
def test_keys_are_checked(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Translator(text_model()).translate(TEXTS, **keys)
