"""Old names of modules, classes and functions: they still work, with a warning."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from seqgen.data.noising import NoiseTokens
from seqgen.decoder import IncrementalDecoder
from seqgen.flags import Flags
from seqgen.generation.context import StepContext
from seqgen.generation.processors.length import MinimumLength
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.incremental_state import IncrementalState
from seqgen.model import EncoderDecoderModel
from seqgen.renamed import MEMBERS, MODULES, NAMES, PACKAGES, REMOVED, SPLIT, RenamedMembers
from seqgen.tasks.denoising import DenoisingTask
from tests.generators import make_generator
from tests.model_zoo import build
from tests.scripted_model import dictionary
from tests.waiting_sentences import queue

RENAMED = [
    ("seqgen.compose", "DECODING_COMPONENTS", "seqgen.registry", "DECODING_COMPONENTS"),
    ("seqgen.compose", "check_component_keys", "seqgen.component_keys", "check_component_keys"),
    ("seqgen.compose", "expand_sweep", "seqgen.sweep", "expand_sweep"),
    ("seqgen.compose", "from_dict", "seqgen.config_dicts", "from_dict"),
    ("seqgen.compose", "given_values", "seqgen.arguments", "given_values"),
    ("seqgen.compose", "LARGEST", "seqgen.config_values", "LARGEST"),
    ("seqgen.compose", "known_keys", "seqgen.config_keys", "known_keys"),
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
    ("seqgen.generation.processors.warpers", "Cutoff", "seqgen.generation.processors.warpers", "Warper"),
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
    ("seqgen.incremental_state", "Slots", "seqgen.incremental_state", "ModuleState"),
    ("seqgen.modules.masks", "starts_of_rows", "seqgen.modules.masks", "start_offsets_of_rows"),
    ("seqgen.modules.number_formats", "NUMBER_FORMATS", "seqgen.modules.dtypes", "DTYPES"),
    ("seqgen.modules.number_formats", "to_number_format", "seqgen.modules.dtypes", "to_dtype"),
    (
        *("seqgen.generation.processor_setup", "end_symbols_from_config"),
        *("seqgen.generation.processor_options", "end_tokens_from_config"),
    ),
    ("seqgen.generation.stopping", "EndSymbols", "seqgen.generation.stopping", "EndTokens"),
    ("seqgen.data.noising", "NoiseSymbols", "seqgen.data.noising", "NoiseTokens"),
    (
        *("seqgen.generation.processor_setup", "FAIRSEQ_ORDER"),
        *("seqgen.generation.rules.fairseq", "OVERRULED_BY_PREFIX"),
    ),
    ("seqgen.generation.processor_setup", "HUGGINGFACE_ORDER", "seqgen.generation.rules.huggingface", "ORDER"),
    ("seqgen.generation.drafting", "LookedUp", "seqgen.generation.speculative.drafters", "NgramDraft"),
    (
        *("seqgen.generation.speculative", "Speculation"),
        *("seqgen.generation.speculative.verification", "SpeculativeSession"),
    ),
    ("seqgen.loading", "Reader", "seqgen.checkpoints.loading", "CheckpointLoader"),
    ("seqgen.loading", "WEIGHT_FORMATS", "seqgen.checkpoints.loading", "WEIGHT_DTYPES"),
    ("seqgen.loading", "reader_of", "seqgen.checkpoints.loading", "checkpoint_loader_of"),
    (*("seqgen.checkpoints.loading", "declare_reader"), *("seqgen.checkpoints.loading", "declare_checkpoint_loader")),
    (*("seqgen.checkpoints.loading", "register_reader"), *("seqgen.checkpoints.loading", "register_checkpoint_loader")),
    ("seqgen.modules.beam_table_cache", "BeamTable", "seqgen.modules.kv_cache.indirection", "IndirectionTable"),
    ("seqgen.modules.key_value_cache", "StaticCache", "seqgen.modules.kv_cache.static", "StaticCache"),
]

FORMER = {  # where the removed names were
    "Asked": "processor_setup",
    "BLEU_ORDER": "minimum_bayes_risk",
    "BeamTableCache": "seqgen.modules.beam_table_cache",
    "FeaturesMember": "contrastive",
    "Procedure": "procedure",
    "bleu_of_pairs": "minimum_bayes_risk",
    "chrf_of_pairs": "minimum_bayes_risk",
    "guide": "guidance",
    "of_a_user": "combinations",
    "speculation_from_config": "speculative",
    "warpers_from_config": "processor_setup",
}


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", REMOVED)
def test_removed_names(name: str) -> None:
    """The error says what replaces the name; the modules and names in that sentence exist."""
    module = FORMER[name] if "." in FORMER[name] else f"seqgen.generation.{FORMER[name]}"
    with pytest.raises(ImportError) as error:
        exec(f"from {module} import {name}")
    assert str(error.value) == f"{module}.{name} was removed; {REMOVED[name]}"
    for found in re.findall(r"seqgen(?:\.[a-z_]+)+", REMOVED[name]):
        homes = importlib.import_module(found)
        used = [word for word in re.findall(r"\w+", REMOVED[name]) if hasattr(homes, word)]
        assert used, f"{found} has nothing of what the message names"


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
    with pytest.warns(DeprecationWarning, match="generate_rolling is now generate_continuously"):
        assert generator.generate_rolling(3) == 3  # type: ignore[attr-defined]


FORMER_LSTM = """
class MyDecoder(LSTMDecoder):
    joins = can_truncate = True

    def reorder_slots(self, slots, new_order):
        return super().reorder_slots(slots, new_order)

    def truncate_slots(self, slots, positions):
        raise NotImplementedError

    def trim_slots(self, slots, positions):
        return slots

    def merge_slots(self, slots, others):
        return {name: torch.cat([value, others[name]]) for name, value in slots.items()}
"""
"""What a user's LSTM overrides, in former names."""


def test_a_model_in_former_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """It decodes the same tokens with continuous batching; its class warns once."""
    source = Path("examples/lstm.py").read_text(encoding="utf-8").partition("@register_model")[0]
    for old in ("get_slots", "set_slots"):
        assert MEMBERS[old] in source
        source = source.replace(MEMBERS[old], old)
    mine = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", mine)
    exec(source + "import torch", vars(mine))
    with pytest.warns(DeprecationWarning, match="MyDecoder.can_truncate is now can_roll_back, MyDecoder.joins") as said:
        exec(FORMER_LSTM, vars(mine))
    assert len(said) == 1
    assert said[0].filename == "<string>"
    decoder: type[IncrementalDecoder] = vars(mine)["MyDecoder"]
    assert decoder.can_merge
    assert decoder.can_roll_back
    assert not type("Other", (decoder,), {"roll_back_state": lambda *_: {}}).can_roll_back
    with pytest.warns(DeprecationWarning, match="Other.truncate_slots is now roll_back_state"):
        assert not type("Other", (decoder,), {"truncate_slots": lambda *_: {}}).can_roll_back

    def decode() -> list[tuple[int, list[int]]]:
        take, _ = queue([(4, 5, 2), (6, 2), (7, 4, 4, 2), (5, 2)], 2)
        return [(number, h.tokens.tolist()) for number, (h, *_) in generator.generate_continuously(take)]

    model = build("lstm_tiny")
    generator = make_generator([model], dictionary(19), beam_size=2, max_len_b=6)
    assert not generator.can_merge
    wanted = decode()
    model.decoder.__class__ = decoder
    assert generator.can_merge
    with pytest.warns(DeprecationWarning, match="is now [gs]et_state|is now reorder_state") as said:
        assert sorted(decode()) == sorted(wanted)
    assert {Path(one.filename).name for one in said} == {"<string>"}


def test_a_mixin_in_former_names() -> None:
    class Joining:
        joins = True

    with pytest.warns(DeprecationWarning, match="Mine.joins is now can_merge"):

        class Mine(Joining, MinimumLength):
            def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
                return lprobs

    assert Mine(1).can_merge
    with pytest.warns(DeprecationWarning, match="Own.joins"):

        class Own(MinimumLength):
            flags: ClassVar[Flags] = {"joins": ("__call__", "truncate")}
            joins = True

            def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
                return lprobs

    assert Own.flags == {"can_merge": ("__call__", "roll_back")}
    assert Own(1).can_merge


def test_former_attributes() -> None:
    state = IncrementalState(2, 3)
    former: Any = state
    with pytest.warns(DeprecationWarning, match="IncrementalState.starts is now start_offsets") as said:
        former.starts = torch.tensor([0, 2])
    assert said[0].filename == __file__
    assert state.start_offsets.tolist() == [0, 2]
    with pytest.warns(DeprecationWarning, match="IncrementalState.has_late_starts is now has_start_offsets"):
        assert former.has_late_starts
    with pytest.warns(DeprecationWarning, match="max_truncation is now max_roll_back"):
        former.max_truncation = 3
    assert state.max_roll_back == 3


def test_old_parameters() -> None:
    with pytest.warns(DeprecationWarning, match="the argument end_symbols of MinimumLength.__init__ is now end_tokens"):
        assert MinimumLength(2, end_symbols=[5]).end_tokens == [5]  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="got end_tokens and its old name, end_symbols"):
        MinimumLength(2, end_tokens=[4], end_symbols=[5])  # type: ignore[call-arg]


def test_methods_that_are_overridden_by_their_old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEMBERS, "old", "new")

    class New(RenamedMembers):
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
    with pytest.warns(DeprecationWarning, match="Ten.old is now new"):
        assert Hundred().new(1) == 111


def test_models_and_tasks_by_the_old_names_of_their_methods() -> None:
    with pytest.warns(DeprecationWarning, match="Model.start_symbol is now start_token"):

        class Model(EncoderDecoderModel):
            def start_symbol(self, task_eos: int) -> int:
                return task_eos + 1

    assert Model.__new__(Model).start_token(2) == 3
    with pytest.warns(DeprecationWarning, match="Noise.symbols is now noise_tokens"):

        class Noise(DenoisingTask):
            def symbols(self) -> NoiseTokens:
                return NoiseTokens(1, np.array([2]), np.array([3]))

    assert Noise.__new__(Noise).noise_tokens().eos == 1


def test_seqgen_imports_nothing_for_this() -> None:
    code = "import sys, seqgen; print(sorted(name for name in sys.modules if name.startswith(('seqgen', 'torch'))))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['seqgen', 'seqgen.renamed']"
