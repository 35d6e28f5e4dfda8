"""Old names of modules, classes and functions: they still work, with a warning."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from seqgen.generation.processors.length import MinimumLength
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.model import EncoderDecoderModel
from seqgen.renamed import MODULES, NAMES, PACKAGES, SPLIT, RenamedMethods
from seqgen.tasks.denoising import DenoisingTask

RENAMED = [
    ("seqgen.training.training_loop", "train", "seqgen.training.train", "train"),
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
    ("seqgen.generation.stopping", "EndSymbols", "seqgen.generation.stopping", "EndTokens"),
    ("seqgen.data.noising", "NoiseSymbols", "seqgen.data.noising", "NoiseTokens"),
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


def test_old_parameters() -> None:
    with pytest.warns(DeprecationWarning, match="the argument end_symbols of MinimumLength.__init__ is now end_tokens"):
        assert MinimumLength(2, end_symbols=[5]).end_tokens == [5]  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="got end_tokens and its old name, end_symbols"):
        MinimumLength(2, end_tokens=[4], end_symbols=[5])  # type: ignore[call-arg]


def test_methods_that_are_overridden_by_their_old_names() -> None:
    class New(RenamedMethods):
        renamed_methods: ClassVar[Mapping[str, str]] = {"old": "new"}

        def new(self, number: int) -> int:
            return number

    class Ten(New):
        def new(self, number: int) -> int:
            return super().new(number) + 10

    with pytest.warns(DeprecationWarning, match="Hundred.old is now new"):

        class Hundred(Ten):
            def old(self, number: int) -> int:
                below: Any = super()
                return int(below.old(number)) + 100

    called: Any = Ten()
    with pytest.warns(DeprecationWarning, match="Ten.old is now new"):
        assert called.old(1) == 11
    with pytest.warns(DeprecationWarning, match="Hundred.old is now new"):
        assert Hundred().new(1) == 111


def test_models_and_tasks_by_the_old_names_of_their_methods() -> None:
    assert EncoderDecoderModel.renamed_methods == {"start_symbol": "start_token"}
    assert DenoisingTask.renamed_methods == {"symbols": "noise_tokens"}
    with pytest.warns(DeprecationWarning, match="Model.start_symbol is now start_token"):

        class Model(EncoderDecoderModel):
            def start_symbol(self, task_eos: int) -> int:
                return task_eos + 1

    assert Model.__new__(Model).start_token(2) == 3


def test_seqgen_imports_nothing_for_this() -> None:
    code = "import sys, seqgen; print(sorted(name for name in sys.modules if name.startswith(('seqgen', 'torch'))))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['seqgen', 'seqgen.renamed']"
