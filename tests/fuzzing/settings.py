"""Random settings: arguments of commands, and decoding with keys whose values fit their declarations."""

import dataclasses
import json
import math
import random
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from seqgen.config import GenerateConfig, GenerationConfig, TrainConfig
from seqgen.config.compose import compose
from seqgen.config.values import from_dict, incompatible, to_dict
from seqgen.extend import ModelInMemory, Translation
from seqgen.registry import COMBINATIONS, DECODING_COMPONENTS, SEARCHES, UTILITIES, Registry
from seqgen.text.output_formats import FORMATS, wanted_details
from seqgen.text.translator import Translator
from tests.fuzzing.mutation import VALUES, change_bytes
from tests.fuzzing.sandbox import Wrong
from tests.text_models import text_model

MODELS = ("transformer_tiny", "fconv_tiny", "t5_tiny", "transformer_tiny")
LINES = ["w1 w5 w8", "w2", "", "w3 w3 w17 w3 w5 w9 w11", "x y", "w4\tw5 w6\tw1|w2", "w0 w18 w2 w7 w1"]
TOKENS = ["w1", "w2", "w17", "</s>", "<unk>", "x"]
SCHEMAS: dict[str, type[Any]] = {"GenerateConfig": GenerateConfig, "TrainConfig": TrainConfig}
CASE = "case.json"


# -- arguments ---------------------------------------------------------------------------------------------------------


def keys_of(schema: Any, prefix: str = "") -> Iterator[str]:
    """The keys of a configuration, groups included."""
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from keys_of(hints[field.name], f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def make_overrides(folder: Path) -> None:
    (folder / CASE).write_text(json.dumps(["GenerateConfig", []]))


def damage_overrides(folder: Path, canary: Path, rng: random.Random) -> None:
    """Random arguments of ``seqgen-generate`` or ``seqgen-train``."""
    name = rng.choice(sorted(SCHEMAS))
    code = f"__import__('os').system('touch {canary}')"
    values: list[Any] = [*VALUES, code, f"${{eval:{code}}}", f"!!python/object/apply:os.system [touch {canary}]"]
    values += ["${oc.decode:1}", "${x}", "[(16, 3)] * 10**9", "null", "{_target_: os.system}", "range(1,10**9)"]
    arguments = []
    for _ in range(rng.choice([1, 1, 2, 4])):
        key = rng.choice([*keys_of(SCHEMAS[name]), "model", "task", "generation.search", "model.dropout", "model.x"])
        argument = f"{rng.choice(['', '', '', '', '+', '~', 'hydra.', '@'])}{key}={rng.choice(values)}"
        if rng.random() < 0.2:
            argument = change_bytes(argument.encode(errors="replace"), rng).decode(errors="replace")
        arguments.append(argument)
    (folder / CASE).unlink()
    (folder / CASE).write_text(json.dumps([name, arguments]))


def read_overrides(folder: Path) -> None:
    """Compose the configuration; written and read again, it is the same."""
    name, arguments = json.loads((folder / CASE).read_text())
    config = compose(SCHEMAS[name], arguments)
    if from_dict(SCHEMAS[name], to_dict(config), "copy") != config and "nan" not in repr(config):
        raise Wrong("written and read, the configuration differs")


# -- decoding ----------------------------------------------------------------------------------------------------------


def _names(registry: Registry) -> list[str]:
    """The names of seqgen's components, without those that a test of the same process registered."""
    return ["", *(entry.name for entry in registry.entries() if not entry.is_user_own)]


OWN_VALUES: dict[str, list[Any]] = {
    "sequence_bias": [["w1=2.5"], ["w1 w2=-inf"], ["w1"], ["w3=1e30"]],
    "bad_words": [["w1"], ["w1 w2", "w3"], [""]],
    "stop_strings": [["w1 w"], ["w2", "5"], [""]],
    "member_sources": [[], ["input"], ["input", "field2"], ["empty", "input"]],
    "search": _names(SEARCHES),
    "combination": _names(COMBINATIONS),
    "mbr": _names(UTILITIES),
    "source_lang": ["", "field2"],
    "target_lang": ["", "field2"],
    "input_split_lang": ["", "en"],
    "replace_unknown": ["", "source"],
    "forced_first": ["", "w4", "</s>"],
    "forced_last": ["", "w4", "</s>"],
    "max_time": [0.0, 1e-9, 100.0],
    "beam": [1, 2, 3, 4, 6],
}
"""Values of keys whose declarations say less than decoding needs."""


def value_of(field: dataclasses.Field[Any], annotation: Any, rng: random.Random) -> Any:
    """A value that the declaration of a key allows."""
    if field.name in OWN_VALUES:
        return rng.choice(OWN_VALUES[field.name])
    least, most = field.metadata["minimum"], field.metadata["maximum"]
    if field.metadata["choices"] is not None:
        return rng.choice(field.metadata["choices"])
    if annotation is bool:
        return rng.random() < 0.5
    if annotation is int:
        return int(least or 0) + rng.choice([0, 1, 2, 3, 5, 200])
    if annotation in (float, float | None):
        allowed = [x for x in (least, 1e-6, 0.3, 0.9, 1.0, 1.5, most, 1e30, -1.0) if x is not None]
        return rng.choice([x for x in allowed if (least is None or x >= least) and (most is None or x <= most)])
    if annotation == list[float]:
        return rng.choice([[], [1.0, 2.0]])
    if annotation == list[str]:
        form = "{}=1.5" if field.name == "biases" else "{}"
        return [form.format(token) for token in rng.sample(TOKENS, 2)]
    return rng.choice(["", "w1", "</s>", "nothing"])


@cache
def _models() -> list[ModelInMemory]:
    models = [text_model(name, seed) for seed, name in enumerate(MODELS)]
    for model in models:
        model.model.float()
    return models


def make_settings(folder: Path) -> None:
    (folder / CASE).write_text('{"models": [0], "settings": {}, "prefixes": null, "format": "json"}')


def damage_settings(folder: Path, canary: Path, rng: random.Random) -> None:
    """Some keys of the ``generation`` group, and of the components that they choose."""
    fields = {field.name: field for field in dataclasses.fields(GenerationConfig) if field.name != "components"}
    hints = typing.get_type_hints(GenerationConfig)
    settings: dict[str, Any] = {"max_len_b": 6}
    for key in rng.sample(sorted(fields), rng.choice([1, 2, 3, 5, 8])):
        settings[key] = value_of(fields[key], hints[key], rng)
    if rng.random() < 0.85:  # mostly without what contradicts the rest
        while refused := {key for key, _ in incompatible(from_dict(GenerationConfig, settings, ""))} & set(settings):
            settings = {key: value for key, value in settings.items() if key not in refused}
        settings = {key: value for key, value in settings.items() if value != "nothing"}
    for group, (registry, chooser) in DECODING_COMPONENTS.items():
        name = settings.get(chooser)
        if isinstance(name, str) and registry.find(name) is not None and rng.random() < 0.6:
            schema = type(registry.config(name))
            own = typing.get_type_hints(schema)
            found = {f"{group}.{f.name}": value_of(f, own[f.name], rng) for f in dataclasses.fields(schema)}
            settings = found | settings
    models = [rng.randrange(len(MODELS)) for _ in range(rng.choice([1, 1, 2]))]
    prefixes = [rng.choice(["", "w1", "w2 w3"]) for _ in LINES] if rng.random() < 0.2 else None
    case = {"models": models, "settings": settings, "prefixes": prefixes, "format": rng.choice(list(FORMATS))}
    (folder / CASE).unlink()
    (folder / CASE).write_text(json.dumps(case))


def read_settings(folder: Path) -> None:
    """Decode the lines, and check what holds for every output, whatever the settings."""
    case = json.loads((folder / CASE).read_text())
    translator = Translator([_models()[index] for index in case["models"]], **case["settings"])
    cfg = GenerateConfig(format=case["format"])
    decoding = translator.prepare(wanted_details(cfg, translator))
    found = list(decoding.translate(LINES, case["prefixes"]))
    if [item.id for item in found] != list(range(len(LINES))):
        raise Wrong(f"the lines are {[item.id for item in found]}")
    write = FORMATS[cfg.format](decoding, None)
    for translation in found:
        _check(translation, decoding.cfg)
        text = write(translation)
        header = cfg.format == "tsv" and translation.id == 0
        if not text.endswith("\n") or (cfg.format != "fairseq" and text.count("\n") != 1 + header):
            raise Wrong(f"{text!r} is not one line")
        if cfg.format == "json" and any(word in text for word in (": NaN", ": Infinity", ": -Infinity")):
            raise Wrong(f"{text!r} is no JSON")


def _check(translation: Translation, cfg: GenerationConfig) -> None:
    if len(translation.hypotheses) > cfg.nbest or not (translation.hypotheses or translation.notes):
        raise Wrong(f"{len(translation.hypotheses)} hypotheses of {translation.source!r}; nbest is {cfg.nbest}")
    length = len(translation.source_tokens)
    longest = length if cfg.match_source_len else max(1, int(cfg.max_len_a * length) + cfg.max_len_b + 1)
    longest = min(longest, cfg.max_len) if cfg.max_len else longest
    for item in translation.hypotheses:
        tokens, numbers = item.tokens.tolist(), [item.score, *item.positional_scores.tolist()]
        if not all(math.isfinite(number) for number in numbers):
            raise Wrong(f"the scores are {numbers}")
        if len(tokens) > longest or len(numbers) - 1 != len(tokens):
            raise Wrong(f"{len(tokens)} tokens, {len(numbers) - 1} scores; at most {longest} tokens are allowed")
    scores = [item.score for item in translation.hypotheses]
    if not cfg.mbr and scores != sorted(scores, reverse=True):
        raise Wrong(f"the scores of the hypotheses are {scores}")
