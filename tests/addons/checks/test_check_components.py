"""``seqgen-check search=NAME`` and the like: all built-in components pass; exit codes, wrong input."""

import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from seqgen.addons.checks.checking import check as check_invariants
from seqgen.addons.checks.kinds import DecodingCheckConfig, component_subject
from seqgen.addons.checks.strategies import hypotheses_are_outputs, scores_are_the_models
from seqgen.extend import DiverseBeamSearch, GenerationConfig
from seqgen.registry import COMBINATIONS, CRITERIA, SEARCHES, TASKS, Registry
from tests import registered_components
from tests.commands import Outcome, command, corpus, refused
from tests.training_runs import TINY


def built_in(registry: Registry) -> list[str]:
    return [entry.name for entry in registry.entries() if entry.component.__module__.startswith("seqgen.")]


BUILT_IN = [
    "criterion=label_smoothed_cross_entropy criterion.z_loss=0.1",
    *(f"processor=checked_{name}" for name in registered_components.PROCESSORS),
    *(f"search={name}" for name in built_in(SEARCHES)),
    *(f"combination={name}" for name in built_in(COMBINATIONS)),
    *(f"criterion={name}" for name in built_in(CRITERIA)),
]


def check(*arguments: str) -> Outcome:
    outcome = command("check", *arguments, "common.threads=1")
    assert "Traceback" not in outcome.err, outcome.err
    return outcome


def assert_passes(*arguments: str) -> Outcome:
    outcome = check(*arguments)
    assert outcome.code == 0, f"{arguments}\n{outcome.out}{outcome.err}"
    assert re.search(r"^(\d+) of \1 invariants hold$", outcome.out, re.MULTILINE)
    return outcome


def test_components_with_trained_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("train", "run_dir=run", *TINY, "optimization.max_update=2", "common.threads=1").code == 0
    (tmp_path / "own.py").write_text(
        "from seqgen.extend import MEMBER_LPROBS, Observer, register_observer\n\n"
        "@register_observer('of_ensembles')\n"
        "class OfEnsembles(Observer):\n"
        "    needs = frozenset({MEMBER_LPROBS})\n\n"
        "    @classmethod\n"
        "    def build(cls, cfg, resources):\n"
        "        assert len(resources.models) == 2\n"
        "        return cls()\n\n"
        "    def observe(self, record):\n"
        "        assert len(record.context.outputs.member_lprobs) == 2\n"
    )
    both = ("observer=of_ensembles", "path=[run,run]", "semantics=fairseq")
    outcome = assert_passes(f"common.user_dir={tmp_path}/own.py", *both)
    assert "not run: a trained model has one vocabulary" in outcome.out
    assert "cannot join a running batch (can_merge): OfEnsembles does not support it" in outcome.out
    refused(check("combination=log", "path=run"), "a combination is checked with two or more: path=[RUN,RUN]")


@pytest.mark.slow
def test_what_a_component_says_is_no_fault(tmp_path: Path) -> None:
    """Sources of a file, one of which has no hypothesis; a model without a left-to-right pass."""
    (tmp_path / "own.py").write_text(
        "from seqgen.extend import BeamSearch, register_search\n\nclass Above(BeamSearch):\n    least = -2.0\n\n"
        "    def complete(self, candidates):\n        return candidates.scores > self.least\n\n"
        "register_search('some')(Above)\nregister_search('none')(type('Never', (Above,), {'least': 1.0}))\n"
    )
    (tmp_path / "in.txt").write_text("the dog sees a man\na man\n\n")
    own = f"common.user_dir={tmp_path}/own.py", f"input={tmp_path}/in.txt"
    assert_passes(*own, "search=some")
    assert "finds no hypothesis for any sentence" in check(*own, "search=none").out
    own = "common.user_dir=examples/papers/mask_predict_model.py", f"input={tmp_path}/in.txt"
    outcome = assert_passes(*own, "model=mask_predict_tiny")
    assert outcome.out.count("not run: model=mask_predict has no left-to-right pass") > 20


def component_outcome(invariant: Any, **values: Any) -> Any:
    cfg = DecodingCheckConfig(generation=GenerationConfig(**{"search": "beam", **values}))
    (outcome,) = check_invariants(component_subject("search", cfg), {"": invariant})
    return outcome


@pytest.mark.parametrize(
    "values",
    [
        {"length_penalty_form": "wu", "length_penalty": 0.7, "temperature": 2.0},
        {"normalize_scores": False, "repetition_penalty": 1.5},
        {"search": "sampling", "unkpen": 2.0},
        {"search": "contrastive", "semantics": "huggingface", "no_repeat_ngram_size": 2},
    ],
    ids=str,
)
def test_keys_that_change_scores(values: dict[str, Any]) -> None:
    outcome = component_outcome(scores_are_the_models, **values)
    assert (outcome.violation, outcome.reason) == (None, "")


def test_keys_that_exclude_an_invariant_and_wrong_scores_with_keys() -> None:
    outcome = component_outcome(hypotheses_are_outputs, match_source_len=True)
    assert outcome.reason.startswith("generation.max_len_a=0.5")
    values = {"search": "diverse_beam", "components": {"search.groups": 2}, "length_penalty": 0.0}
    with mock.patch.object(DiverseBeamSearch, "changes_scores", False):
        assert component_outcome(scores_are_the_models, **values).violation is not None


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", BUILT_IN)
def test_built_in_components_pass(arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_passes(*arguments.split())


def task_keys(data: Path) -> dict[str, list[str]]:
    """The keys with which each task finds its data."""
    source = {"train": f"{data}/train", "valid": f"{data}/test", "source_lang": "en", "target_lang": "de"}
    content = {"sources": {"de": {**source, "input": "translate: {source}"}}}
    (data / "mixture.yaml").write_text(yaml.safe_dump(content))
    text = [f"task.train=[{data}/train.en]", f"task.valid=[{data}/test.en]"]
    files = [f"task.train={data}/train", f"task.valid={data}/test"]
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
