"""Old names of modules, classes and functions: they still work, with a warning."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.renamed import MODULES, NAMES, PACKAGES, SPLIT

RENAMED = [
    ("seqgen.training.training_loop", "train", "seqgen.training.train", "train"),
    ("seqgen.training.milestones", "Milestones", "seqgen.training.triggers", "Triggers"),
    ("seqgen.training.distributed", "Peers", "seqgen.training.distributed", "ProcessGroup"),
    (
        *("seqgen.training.distributed", "peers_from_environment"),
        *("seqgen.training.distributed", "group_from_environment"),
    ),
    ("seqgen.generation.history", "History", "seqgen.generation.backpointers", "BackPointers"),
    ("seqgen.generation.decoding", "Decoding", "seqgen.generation.session", "Session"),
    ("seqgen.generation.decoding", "Streamer", "seqgen.generation.setup", "Streamer"),
    ("seqgen.generation.logits_processors", "DecodingContext", "seqgen.generation.context", "StepContext"),
    ("seqgen.generation.logits_processors", "MinimumLength", "seqgen.generation.processors.length", "MinimumLength"),
    ("seqgen.generation.logits_processors", "LogitsProcessor", "seqgen.generation.processors.base", "LogitsProcessor"),
    ("seqgen.generation.search", "SearchBatch", "seqgen.generation.component", "BatchInfo"),
    ("seqgen.generation.search", "Search", "seqgen.generation.search.base", "Search"),
    ("seqgen.generation.search", "BeamSearch", "seqgen.generation.search.beam", "BeamSearch"),
    ("seqgen.generation.search", "search_from_config", "seqgen.generation.options", "search_from_config"),
    ("seqgen.generation.ensemble", "Ensemble", "seqgen.generation.ensemble.ensemble", "Ensemble"),
    ("seqgen.generation.ensemble", "Member", "seqgen.generation.ensemble.member", "Member"),
    (
        *("seqgen.generation.speculative", "SpeculativeDecoding"),
        *("seqgen.generation.speculative.verification", "SpeculativeSearch"),
    ),
    (
        *("seqgen.generation.rolling", "RollingDecoding"),
        *("seqgen.generation.continuous_batching", "ContinuousBatching"),
    ),
    ("seqgen.generation.candidates", "log_normalizer", "seqgen.generation.candidates", "log_sum_exp"),
    ("seqgen.generation.combinations", "check_combinations", "seqgen.generation.compatibility", "check_compatible"),
    ("seqgen.generation.sampling", "StochasticBeam", "seqgen.generation.search.stochastic_beam", "StochasticBeam"),
    (
        "seqgen.generation.contrastive",
        "ContrastiveDecoding",
        "seqgen.generation.search.contrastive",
        "ContrastiveSession",
    ),
    ("seqgen.generation.exact_search", "ExactDecoding", "seqgen.generation.search.exact", "ExactSession"),
    (
        *("seqgen.generation.group_beam_search", "GroupBeamSearch"),
        *("seqgen.generation.rules.huggingface_groups", "HuggingFaceDiverseBeam"),
    ),
    (
        *("seqgen.generation.constrained_beam_search", "ConstrainedBeamSearch"),
        *("seqgen.generation.rules.huggingface_constraints", "HuggingFaceConstrainedBeam"),
    ),
    (
        *("seqgen.generation.processor_setup", "end_symbols_from_config"),
        *("seqgen.generation.processor_options", "end_tokens_from_config"),
    ),
]


@pytest.mark.parametrize("old", MODULES)
def test_old_modules(old: str) -> None:
    """Each is importable, warns, and has all public names of the module that replaces it."""
    for name in [name for name in sys.modules if name == old]:
        del sys.modules[name]
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MODULES[old]}"):
        module = importlib.import_module(old)
    new = importlib.import_module(MODULES[old])
    public = [name for name in vars(new) if not name.startswith("_")]
    assert public
    assert all(getattr(module, name) is getattr(new, name) for name in public)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018
    assert not (Path("/".join(old.split("."))).with_suffix(".py")).exists()


@pytest.mark.parametrize(("old_module", "old", "new_module", "new"), RENAMED)
def test_old_names(old_module: str, old: str, new_module: str, new: str) -> None:
    for name in [name for name in sys.modules if name == old_module and name in MODULES]:
        del sys.modules[name]
    with pytest.warns(DeprecationWarning, match=rf"{old_module}.* is now "):
        found = getattr(importlib.import_module(old_module), old)
    assert found is getattr(importlib.import_module(new_module), new)


def test_every_renamed_name_is_tried() -> None:
    assert set(NAMES) <= {old for _, old, _, _ in RENAMED}
    assert set(PACKAGES) <= {module for module, *_ in RENAMED}
    assert set(SPLIT) <= {module for module, *_ in RENAMED}


def test_the_warning_names_the_line_of_the_user(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("import seqgen\nfrom seqgen.generation.history import History\n")
    result = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", str(script)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parent.parent), "PATH": ""},
    )
    said = [line for line in result.stderr.splitlines() if "is now" in line]
    assert len(said) == 2, result.stderr
    assert all("mine.py:2: DeprecationWarning" in line for line in said), result.stderr


def test_new_names_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in (*MODULES.values(), *PACKAGES, *PACKAGES.values()):
            importlib.import_module(name)
        from seqgen.generation.search import beam, stochastic_beam

        assert beam.BeamSearch
        assert stochastic_beam.StochasticBeam


def test_the_old_method(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = SequenceGenerator.__new__(SequenceGenerator)
    monkeypatch.setattr(generator, "generate_continuously", lambda waiting: waiting, raising=False)
    old: Any = generator.generate_rolling
    with pytest.warns(DeprecationWarning, match="generate_rolling is now generate_continuously"):
        assert old(3) == 3


def test_seqgen_imports_nothing_for_this() -> None:
    code = "import sys, seqgen; print(sorted(name for name in sys.modules if name.startswith(('seqgen', 'torch'))))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['seqgen', 'seqgen.renamed']"
