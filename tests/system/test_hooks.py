"""A class that misspells a hook is refused where it is defined."""

from __future__ import annotations

from pathlib import Path

import pytest

import seqgen.extend
import seqgen.models
import seqgen.tasks  # declares the built-in tasks, as the import above declares the models
from seqgen.core.contract import Hooked, find_misspelt
from seqgen.core.errors import ConfigError
from tests.commands import command
from tests.system.test_flags import built_in

WRONG = {
    ("BeamSearch", "beam_states"): "did you mean 'beam_state'?",
    ("BeamSearch", "begins"): "did you mean 'begin'?",
    ("Search", "setp"): "did you mean 'step'?",
    ("Search", "independent_rows"): "did you mean 'continues_each_beam'?",
    ("Sampling", "adjusts_scores"): "did you mean 'changes_scores'?",
    ("Search", "takes_constraints"): "did you mean 'enforces_constraints'?",
    ("LogitsProcessor", "shift_invarient"): "did you mean 'shift_invariant'?",
    ("Combination", "atention_weights"): "did you mean 'attention_weights'?",
    ("StoppingRule", "sentence_states"): "did you mean 'sentence_state'?",
    ("Observer", "observes"): "did you mean 'observe'?",
    ("NgramUtility", "biuld"): "did you mean 'build'?",
    ("EncoderDecoderModel", "max_position"): "did you mean 'max_positions'?",
    ("Encoder", "reorder_encoder_outs"): "did you mean 'reorder_encoder_out'?",
    ("IncrementalDecoder", "share_encoder_output"): "did you mean 'shares_encoder_output'?",
    ("Task", "encode_sources"): "did you mean 'encode_source'?",
    ("LRScheduler", "after_warmups"): "did you mean 'after_warmup'?",
}
"""What is said about a name in a subclass."""


@pytest.mark.parametrize(("base", "name"), WRONG)
def test_names_of_hooks(base: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"Own defines {name!r}, which nothing calls or reads") as found:
        type("Own", (getattr(seqgen.extend, base),), {name: True})
    assert WRONG[base, name] in str(found.value)


def test_all_misspelt_names_are_reported_at_once() -> None:
    with pytest.raises(ConfigError, match=r"Own defines 'begins', .*'begin'.*; Own defines 'setp', .*'step'"):
        type("Own", (seqgen.extend.Search,), {"begins": 1, "threshold": 1, "setp": 1})


def test_other_names() -> None:
    """Helpers, what begins with an underscore, and what a base class of the user's own has are not refused."""
    search = seqgen.extend.BeamSearch
    own = type("Own", (search,), {"_begins": True, "can_prune": True, "threshold": 1.0, "step": search.step})
    type("Further", (own,), {"can_prune": False, "can_prunes": True})


def test_no_built_in_class_is_taken_for_misspelt() -> None:
    assert not {cls: found for cls in built_in(Hooked) if (found := list(find_misspelt(cls)))}


def test_a_command_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("from seqgen.core.beam_search import BeamSearch\n\nclass Own(BeamSearch):\n    begins = 1\n")
    outcome = command("check", f"common.user_dir={file}", "search=own")
    assert outcome.code == 2
    assert outcome.err.startswith(f"seqgen-check: {file}:3: Own defines 'begins', which nothing calls or reads (did")
    assert len(outcome.err.splitlines()) == 1
