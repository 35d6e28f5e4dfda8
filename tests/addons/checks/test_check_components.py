"""``seqgen-check search=NAME`` and the like: all built-in components and the examples pass; exit codes, wrong input."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

import seqgen.models  # declares the built-in models
import seqgen.tasks  # noqa: F401  # declares the built-in tasks
from seqgen.addons.checks import kinds
from seqgen.addons.checks.checking import check as check_invariants
from seqgen.addons.checks.components import OF_ONE_MODEL, SHARED, alone_equals_batched
from seqgen.addons.checks.kinds import KINDS, DecodingCheckConfig, component_subject
from seqgen.addons.checks.strategies import (
    STRATEGY,
    forbidden_tokens_are_not_generated,
    hypotheses_are_outputs,
    scores_are_the_models,
)
from seqgen.addons.checks.subject import Ids
from seqgen.config import GenerationConfig
from seqgen.core.errors import ConfigError
from seqgen.decoding.search.diverse import DiverseBeamSearch
from seqgen.registry import COMBINATIONS, CRITERIA, SEARCHES, TASKS, Registry
from tests import registered_components
from tests.commands import Outcome, command, corpus
from tests.training_runs import TINY

EXAMPLES = Path(__file__).parents[3] / "examples"

PENALTY = f"common.user_dir={EXAMPLES}/extending/stateful_processor.py"
"""Registers the processor ``frequency_penalty``."""

KEYS = {
    "criterion=label_smoothed_cross_entropy": ["criterion.z_loss=0.1"],
}
"""Keys that a component needs, or with which more happens."""


def built_in(registry: Registry) -> list[str]:
    return [entry.name for entry in registry.entries() if entry.component.__module__.startswith("seqgen.")]


BUILT_IN = [
    f"{kind}={name}"
    for kind, registry in {
        "search": SEARCHES,
        "combination": COMBINATIONS,
        "criterion": CRITERIA,
    }.items()
    for name in built_in(registry)
]

EXAMPLE_FILES = {
    "extending/search_strategy.py": ["search=threshold", "search.delta=1.0"],
    "extending/logits_processor.py": ["processor=word_reward", "processor.word_reward.reward=0.3"],
    "extending/stateful_processor.py": ["processor=frequency_penalty"],
    "extending/combination.py": ["combination=power_mean", "combination.power=-4.0"],
    "extending/stopping_rule.py": ["stopping=loop", "stopping.loop.size=1", "stopping.loop.times=2"],
    "extending/observer.py": ["observer=outcomes", "observer.outcomes.file=outcomes.jsonl"],
    "extending/criterion.py": ["criterion=focal"],
    "dates.py": ["task=dates"],
    "papers/mask_predict_model.py": ["criterion=mask_predict", "model=mask_predict_tiny"],
}


def check(*arguments: str) -> Outcome:
    outcome = command("check", *arguments, "common.threads=1")
    assert "Traceback" not in outcome.err, outcome.err
    return outcome


def assert_passes(*arguments: str) -> Outcome:
    outcome = check(*arguments)
    assert outcome.code == 0, f"{arguments}\n{outcome.out}{outcome.err}"
    assert re.search(r"^(\d+) of \1 invariants hold$", outcome.out, re.MULTILINE)
    return outcome


@pytest.mark.slow
def test_a_component_that_passes() -> None:
    outcome = assert_passes("search=constrained")
    assert all(name in outcome.out for name in STRATEGY)
    assert "joining = one batch                        not run: sentences cannot join a running batch" in outcome.out


def test_a_component_that_fails(tmp_path: Path) -> None:
    (tmp_path / "noise.py").write_text(
        "import torch\n"
        "from seqgen.core.processors import LogitsProcessor\n"
        "from seqgen.registry import register_logits_processor\n\n"
        "@register_logits_processor('noise_of_the_check')\n"
        "class Noise(LogitsProcessor):\n"
        "    def __call__(self, lprobs, context):\n"
        "        return lprobs + torch.rand_like(lprobs)\n"
    )
    outcome = check(f"common.user_dir={tmp_path}/noise.py", "processor=noise_of_the_check", "semantics=fairseq")
    assert outcome.code == 1
    lines = outcome.out.splitlines()
    place = lines.index(next(line for line in lines if line.startswith("decodes are repeatable")))
    assert " failed " in lines[place]
    assert re.match(r"    step \d, sentence \d, beam \d: a second decode", lines[place + 1])
    assert lines[-1].startswith("probable cause: the component draws from PyTorch's own random numbers")


def test_components_with_a_run_and_other_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor is checked with a trained model and another search."""
    monkeypatch.chdir(tmp_path)
    assert command("train", "run_dir=run", *TINY, "optimization.max_update=2", "common.threads=1").code == 0
    outcome = assert_passes(
        *(PENALTY, "processor=frequency_penalty", "processor.frequency_penalty.penalty=1", "path=run"),
        *("semantics=fairseq", "generation.search=diverse_beam", "search.groups=2"),
    )
    assert "not run: a trained model has one vocabulary" in outcome.out
    (tmp_path / "own.py").write_text(
        "from seqgen.extend import MEMBER_LPROBS, Observer, register_observer\n\n"
        "@register_observer('of_ensembles')\n"
        "class OfEnsembles(Observer):\n"
        "    needs = frozenset({MEMBER_LPROBS})\n\n"
        "    def observe(self, record):\n"
        "        assert len(record.context.outputs.member_lprobs) == 2\n"
    )
    both = ("observer=of_ensembles", "path=[run,run]", "semantics=fairseq")
    outcome = assert_passes(f"common.user_dir={tmp_path}/own.py", *both)
    assert "cannot join a running batch (can_merge): OfEnsembles does not support it" in outcome.out
    for arguments, message in (
        (("combination=log", "path=run"), "a combination is checked with two or more: path=[RUN,RUN]"),
        (("search=beam", "path=run", "model=fconv_tiny"), "set either model=NAME"),
    ):
        assert message in check(*arguments).err


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"length_penalty": 0.0}, ""),
        ({"length_penalty_form": "wu", "length_penalty": 0.7}, ""),
        ({"normalize_scores": False}, ""),
        ({"temperature": 2.0}, ""),
        ({"repetition_penalty": 1.5}, ""),
        ({"search": "sampling", "unkpen": 2.0}, ""),
        ({"search": "contrastive", "semantics": "huggingface", "no_repeat_ngram_size": 2}, ""),
        (
            {"match_source_len": True},
            "its decode does not support the given keys: generation.max_len_a=0.5",
        ),
    ],
    ids=str,
)
def test_keys_that_change_scores_or_exclude_others(values: dict[str, Any], reason: str) -> None:
    invariant = hypotheses_are_outputs if "match_source_len" in values else scores_are_the_models
    subject = component_subject(
        "search", DecodingCheckConfig(generation=GenerationConfig(**{"search": "beam", **values}))
    )
    (outcome,) = check_invariants(subject, {"": invariant})
    assert outcome.violation is None
    assert outcome.reason.startswith(reason)
    assert bool(outcome.reason) == bool(reason)


def test_a_strategy_with_wrong_scores_is_found_with_such_keys() -> None:
    values = {"search": "diverse_beam", "components": {"search.groups": 2}, "length_penalty": 0.0}
    subject = component_subject("search", DecodingCheckConfig(generation=GenerationConfig(**values)))
    with mock.patch.object(DiverseBeamSearch, "changes_scores", False):
        (outcome,) = check_invariants(subject, {"": scores_are_the_models})
    assert outcome.violation is not None


def test_a_key_value_cache() -> None:
    given = (f"common.user_dir={EXAMPLES}/extending/cache.py", "model=transformer_tiny")
    assert (
        "BFloat16Cach: the name is unknown (did you mean 'BFloat16Cache'?)" in check(*given, "cache=BFloat16Cach").err
    )
    outcome = check(*given, "cache=BFloat16Cache", "tolerance=0.05")
    assert outcome.code == 0, outcome.out
    assert "steps after rolling back                   passed" in outcome.out
    assert check("model=fconv_tiny", "cache=GrowingCache").err.count("the decoder has no attention") == 1


def test_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "WORDS", 4)
    cfg = DecodingCheckConfig(generation=GenerationConfig(search="constrained"), semantics="fairseq")
    invariants = [alone_equals_batched, forbidden_tokens_are_not_generated]
    named = {one.__name__: one for one in invariants}
    outcomes = list(check_invariants(component_subject("search", cfg), named))
    assert [outcome for outcome in outcomes if outcome.violation or outcome.reason] == []
    ids = Ids(1, 2, 2, (4, 8), 8)
    changed = ids.inputs([5], 2).inputs_with_source(0, 0, ids.words).src_tokens
    assert 4 <= int(changed[0, 0]) < 8
    monkeypatch.setattr(kinds, "WORDS", 3)
    with pytest.raises(ConfigError, match="at most 3 words in a row, but the checks need 4"):
        component_subject("search", cfg)


@pytest.mark.parametrize("body", ["open('no/such/file')", "self.missing", "int('x')"])
def test_a_component_that_cannot_be_built(body: str, tmp_path: Path) -> None:
    name = f"not_built_{body.split('(')[0].split('.')[0]}"
    (tmp_path / "own.py").write_text(
        "from seqgen.extend import LogitsProcessor, register_logits_processor\n\n"
        f"@register_logits_processor({name!r})\n"
        f"class NotBuilt(LogitsProcessor):\n    def __init__(self):\n        {body}\n"
    )
    outcome = check(f"common.user_dir={tmp_path}/own.py", f"processor={name}")
    assert outcome.code == 2
    assert re.match(r"seqgen-check: the processor cannot be built from its keys: \w+: .* \(.*own.py:6\); ", outcome.err)


@pytest.mark.nightly
@pytest.mark.parametrize("chosen", BUILT_IN)
def test_every_built_in_component(chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_passes(chosen, *KEYS.get(chosen, []))


@pytest.mark.nightly
@pytest.mark.parametrize("name", registered_components.PROCESSORS)
def test_every_built_in_processor(name: str) -> None:
    assert_passes(f"processor=checked_{name}")


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLE_FILES)
def test_every_example(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_passes(f"common.user_dir={EXAMPLES / file}", *EXAMPLE_FILES[file])


def task_keys(data: Path) -> dict[str, list[str]]:
    """The keys with which each task finds its data."""
    pairs = {"de": {"train": f"{data}/train", "valid": f"{data}/test", "source_lang": "en", "target_lang": "de"}}
    source = {**pairs["de"], "input": "translate: {source}"}
    (data / "mixture.yaml").write_text(yaml.safe_dump({"sources": {"de": source}}))
    text = [f"task.train=[{data}/train.en]", f"task.valid=[{data}/test.en]"]
    files = ["task.train=" + f"{data}/train", f"task.valid={data}/test"]
    return {
        "translation": ["task.source_lang=en", "task.target_lang=de", *files, "task.vocab_size=44"],
        "multilingual_translation": ["task.pairs=[en-de,de-en]", *files, "task.vocab_size=44"],
        "language_modeling": [*text, "task.vocab_size=28", "task.tokens_per_sample=20"],
        "denoising": [*text, "task.vocab_size=60", "task.hard_vocab_limit=false", "task.input_length=30"],
        "text_to_text": [f"task.mixture={data}/mixture.yaml", "task.vocab_size=60", "task.hard_vocab_limit=false"],
        "number_names": ["task.train_size=200"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in built_in(TASKS) if "decoding" not in name])
def test_every_built_in_task(name: str, tmp_path: Path) -> None:
    assert_passes(f"task={name}", "task.workers=1", *task_keys(corpus(tmp_path))[name])


def test_a_vacuous_check_is_visible() -> None:
    """Each kind of decoding component has invariants of its own, besides those of all components."""
    assert all(kind.invariants.keys() >= SHARED.keys() - OF_ONE_MODEL for kind in KINDS.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search=beem"], "did you mean 'beam'?"),
        (
            ["processor=checked_top_k", "search=beam"],
            "search and processor are two components; check them one at a time",
        ),
        (["search=beam", "path=runs/a"], "runs/a: there is no such file or folder"),
        (["search=beam", "generation.beam=3"], "generation.beam: the check sets this key itself"),
        (["search=beam", "processor.variety.weight=2"], "generation.processors does not name its logits processor"),
        (["search=beam", "common.device=cuda"], "the checks run on the CPU"),
        (["task=translation"], "task.source_lang is missing"),
        (["task=decoding"], "task=decoding is for decoding and has no data to check"),
        (["serach=beam"], "there is no check 'serach=beam' (did you mean 'search'?); give"),
    ],
)
def test_wrong_input(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = check(*arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
