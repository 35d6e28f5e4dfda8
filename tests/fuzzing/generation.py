"""Decoding with random settings: an output for which the laws hold, or a refusal."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import typing
from pathlib import Path
from typing import Any

import torch

from seqgen.config import GenerateConfig, GenerationConfig
from seqgen.config.values import from_dict
from seqgen.generation.compatibility import incompatible
from seqgen.registry import COMBINATIONS, DECODING_COMPONENTS, SEARCHES, UTILITIES, Registry
from seqgen.text.output_formats import FORMATS, wanted_details
from seqgen.text.results import Translation
from seqgen.text.translator import ModelInMemory, Translator
from tests.fuzzing.reader import Reader
from tests.fuzzing.sandbox import Wrong
from tests.text_models import WORDS, text_model

MODELS = ("transformer_tiny", "fconv_tiny", "t5_tiny", "transformer_tiny")
TOKENS = ["w1", "w2", "w17", "</s>", "<unk>", "x"]
LINES = ["w1 w5 w8", "w2", "", "w3 w3 w17 w3 w5 w9 w11", "x y", "w4\tw5 w6\tw1|w2", "w0 w18 w2 w7 w1"]


def own_components(registry: Registry) -> list[str]:
    """The names of seqgen's components, without those that a test of the same process registered."""
    return [entry.name for entry in registry.entries() if not entry.is_user_own]


KEYS: dict[str, list[Any]] = {
    "semantics": ["", "fairseq", "huggingface"],
    "beam": [1, 2, 3, 4, 6],
    "nbest": [1, 2, 3],
    "source_lang": ["", "de", "field2"],
    "target_lang": ["", "de", "field2"],
    "max_len_a": [0.0, 0.5, 1.3, -1.0],
    "max_len_b": [0, 1, 5, 200],
    "max_len": [0, 1, 2, 7],
    "min_len": [0, 1, 3, 6],
    "min_total_len": [0, 5],
    "early_stopping": ["false", "true", "never"],
    "end_symbols": [["w3"], ["w3", "</s>"], ["nothing"]],
    "stop_strings": [["w1 w"], ["w2", "5"], [""]],
    "stopping_rules": [[], ["nothing"]],
    "max_time": [0.0, 1e-9, 100.0],
    "lenpen": [0.0, 0.6, 1.0, 3.0, -1.0, 10.0, -10.0],
    "length_penalty": ["power", "wu"],
    "coverage_penalty": [0.0, 0.4, 100.0],
    "temperature": [0.3, 1.0, 5.0, 1e-6, 1e30],
    "unkpen": [0.0, 1.0, -1.0, 1e30],
    "suppress": [["w1", "w2"], [f"w{i}" for i in range(WORDS)], ["</s>"]],
    "suppress_at_begin": [["w1"], ["</s>"]],
    "forced_first": ["", "w4", "</s>", "nothing"],
    "forced_last": ["", "</s>", "w4"],
    "bad_words": [["w1"], ["w1 w2", "w3"], [""]],
    "sequence_bias": [["w1=2.5"], ["w1 w2=-inf"], ["w1"], ["w3=1e30"], ["w5=-1"]],
    "no_repeat_ngram_size": [0, 1, 2, 50],
    "encoder_no_repeat_ngram_size": [0, 1, 2],
    "repetition_penalty": [0.5, 1.0, 1.3, 1e-6],
    "encoder_repetition_penalty": [0.7, 1.0, 1.3],
    "exponential_decay_start": [0, 2],
    "exponential_decay_factor": [1.0, 1.2, 0.5, 1e30],
    "guidance_scale": [0.0, 1.0, 1.7],
    "search": ["", *own_components(SEARCHES)],
    "constraints": ["", "ordered", "unordered"],
    "sampling_topk": [0, 1, 3, 1000],
    "sampling_topp": [0.0, 0.3, 0.9, 1.0],
    "min_p": [0.0, 0.1, 1.0],
    "typical_p": [1e-6, 0.3, 1.0],
    "epsilon_cutoff": [0.0, 0.05, 1.0],
    "eta_cutoff": [0.0, 0.05, 1.0],
    "seed": [1, 7, 2**62],
    "draft": ["", "nowhere"],
    "draft_tokens": [1, 5],
    "prompt_lookup": [0, 1, 3],
    "mbr": ["", "nothing", *own_components(UTILITIES)],
    "rerank": ["", "nothing"],
    "prefix_trie": ["", "trie.txt", "nowhere"],
    "shortlist": ["", "nowhere"],
    "replace_unknown": ["", "source", "nowhere"],
    "input_split": ["", "", "sentences", "note"],
    "usual_ratio": [1e-6, 1.0, 3.0],
    "input_split_lang": ["", "", "en", "nothing"],
    "observers": [[], ["nothing"]],
    "combination": ["", "nothing", *own_components(COMBINATIONS)],
    "inner_combination": ["", "", "", "nothing", *own_components(COMBINATIONS)],
    "members": [[], ["input"], ["input", "field2"], ["empty", "input"]],
    "max_tokens": [1, 8, 4096],
    "batch_size": [1, 2, 64],
    "buffer_size": [0, 1, 3],
    "bit_exact": [False, False, True],
    "dtype": ["", "", "float32", "bfloat16", "float16", "int8"],
    **{key: [False, True] for key in ("unnormalized", "match_source_len", "renormalize", "remove_invalid", "sampling")},
    "certificate": [False, False, True],
    "processors": [[]],
}
"""Values of each key; ``components`` is made from those that are chosen."""

FRACTIONS = (0.0, 0.2, 0.9, 1.0, 1.5)


class Generation(Reader):
    """``seqgen-generate`` from the settings on: small random models, all formats."""

    name = "generation"
    cases = 2000
    fast_cases = 8

    def __init__(self, scratch: Path):
        super().__init__(scratch)
        torch.set_num_threads(1)
        self.models = [text_model(name, seed) for seed, name in enumerate(MODELS)]
        for model in self.models:
            model.model.float()
        (scratch / "trie.txt").write_text("w1 w2\nw3\nw1 w4 w5\n")

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        settings: dict[str, Any] = {"max_len_b": 6}
        for key in rng.sample(sorted(KEYS), rng.choice([1, 2, 3, 5, 8])):
            settings[key] = rng.choice(KEYS[key])
        if rng.random() < 0.85:  # mostly without what contradicts the rest
            while refused := {key for key, _ in incompatible(from_dict(GenerationConfig, settings, ""))} & set(
                settings
            ):
                settings = {key: value for key, value in settings.items() if key not in refused}
            settings = {key: value for key, value in settings.items() if "no" not in str(value)[:4]}
        if settings.get("search") == "exact":  # which is as slow as its limit allows
            settings["search.expansions"] = rng.choice([1, 100, 1000])
        if settings.get("prefix_trie") == "trie.txt":
            settings["prefix_trie"] = str(self.scratch / "trie.txt")
        models = [rng.randrange(len(MODELS)) for _ in range(rng.choice([1, 1, 2]))]
        case = {"models": models, "format": rng.choice(list(FORMATS)), "print_alignment": rng.random() < 0.2}
        prefixes = [rng.choice(["", "w1", "w2 w3"]) for _ in LINES] if rng.random() < 0.2 else None
        case |= {"prefixes": prefixes, "settings": self._of_components(settings, rng) | settings}
        (folder / "case.json").write_text(json.dumps(case, indent=1))

    @staticmethod
    def _of_components(settings: dict[str, Any], rng: random.Random) -> dict[str, Any]:
        """Values for some of the own keys of the chosen components."""
        values: dict[str, Any] = {}
        for group, (registry, chooser) in DECODING_COMPONENTS.items():
            chosen = settings.get(chooser) or []
            for name in [chosen] if isinstance(chosen, str) else chosen:
                if registry.find(name) is None or rng.random() < 0.4:
                    continue
                prefix = f"{group}." if isinstance(chosen, str) else f"{group}.{name}."
                schema = type(registry.config(name))
                hints = typing.get_type_hints(schema)
                for field in dataclasses.fields(schema):
                    values[prefix + field.name] = _value(hints[field.name], field, rng)
        return values

    def read(self, folder: Path) -> None:
        case = json.loads((folder / "case.json").read_text())
        members = [self.models[index] for index in case["models"]]
        translator = Translator(members, **case["settings"])
        cfg = GenerateConfig(format=case["format"], print_alignment=case["print_alignment"])
        decoding = translator.prepare(wanted_details(cfg, translator))
        found = list(decoding.translate(LINES, case["prefixes"]))
        if [item.id for item in found] != list(range(len(LINES))):
            raise Wrong(f"the lines are {[item.id for item in found]}")
        write = FORMATS[cfg.format](decoding, None)
        for translation in found:
            self._check(translation, decoding.cfg, members)
            check_written(cfg.format, write(translation), len(translation.hypotheses))

    @staticmethod
    def _check(translation: Translation, cfg: GenerationConfig, members: list[ModelInMemory]) -> None:
        """What holds for every output, whatever the settings."""
        if len(translation.hypotheses) > cfg.nbest or not (translation.hypotheses or translation.notes):
            raise Wrong(f"{len(translation.hypotheses)} hypotheses of {translation.source!r}; nbest is {cfg.nbest}")
        length = len(translation.source_tokens)
        longest = length if cfg.match_source_len else max(1, int(cfg.max_len_a * length) + cfg.max_len_b + 1)
        if cfg.max_len:
            longest = min(longest, cfg.max_len)
        size = len(members[0].task.target_dictionary)
        for item in translation.hypotheses:
            numbers = [item.score, *item.positional_scores.tolist()]
            if not all(math.isfinite(number) for number in numbers):
                raise Wrong(f"the scores are {numbers}")
            tokens = item.tokens.tolist()
            if len(tokens) > longest or len(item.positional_scores) != len(tokens):
                raise Wrong(f"{len(tokens)} tokens, {len(numbers) - 1} scores; at most {longest} tokens are allowed")
            if not all(0 <= token < size for token in tokens):
                raise Wrong(f"the tokens are {tokens} of {size}")
        scores = [item.score for item in translation.hypotheses]
        if not cfg.mbr and scores != sorted(scores, reverse=True):
            raise Wrong(f"the scores of the hypotheses are {scores}")


def check_written(name: str, text: str, hypotheses: int) -> None:
    """Check the lines of one translation in an output format."""

    def refuse(constant: str) -> None:
        raise Wrong(f"the JSON contains {constant}")

    if not text.endswith("\n") or (name != "fairseq" and text.count("\n") != 1):
        raise Wrong(f"{text!r} is not one line")
    if name == "json" and len(json.loads(text, parse_constant=refuse)["hypotheses"]) != hypotheses:
        raise Wrong(f"{text!r} has not {hypotheses} hypotheses")
    if name == "fairseq" and text.count("\nH-") != hypotheses:
        raise Wrong(f"{text!r} has not {hypotheses} hypotheses")


def _value(annotation: Any, field: dataclasses.Field[Any], rng: random.Random) -> Any:
    """A value in the range of a component's field."""
    least, most = (field.metadata.get(name) for name in ("minimum", "maximum"))
    if annotation is bool:
        return rng.random() < 0.5
    if annotation is int:
        return rng.randrange(int(least or 0), int(least or 0) + 6)
    if annotation in (float, float | None):
        allowed = [x for x in FRACTIONS if (least is None or x >= least) and (most is None or x <= most)]
        return rng.choice(allowed)
    if annotation == list[float]:
        return rng.choice([[], [1.0, 2.0]])
    if annotation == list[str]:
        biased = field.name == "biases"
        return [f"{token}=1.5" if biased else token for token in rng.sample(TOKENS, 2)]
    return rng.choice(["w1", "</s>"])


READERS: list[type[Reader]] = [Generation]
