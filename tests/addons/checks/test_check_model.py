"""``seqgen-check model=NAME`` and ``path=RUN``: the table, the exit code and wrong input."""

import re
from pathlib import Path

import pytest

from seqgen.addons.checks.checking import ERROR
from seqgen.addons.checks.models import PASSES, SEARCH, STEPPING, WEIGHTS
from seqgen.addons.checks.subject import Subject
from tests.addons.checks.test_check_components import check
from tests.commands import refused
from tests.huggingface_t5 import tiny_folder

LSTM = Path(__file__).parents[3] / "examples" / "lstm.py"
SMALL_LSTM = ("model.embed_dim=8", "model.hidden_size=6")


def own_model(folder: Path, name: str, old: str, new: str) -> str:
    """A copy of the LSTM example under another name, with a change: the argument that imports it."""
    text = LSTM.read_text(encoding="utf-8").replace('"lstm"', f'"{name}"').replace('"lstm_tiny"', f'"{name}_tiny"')
    assert text.count(old) == 1
    (folder / f"{name}.py").write_text(text.replace(old, new), encoding="utf-8")
    return f"common.user_dir={folder / name}.py"


def test_a_model_that_passes() -> None:
    outcome = check(f"common.user_dir={LSTM}", "model=lstm_tiny", *SMALL_LSTM)
    assert outcome.code == 0, outcome.out
    assert all(name in outcome.out for name in PASSES | STEPPING | WEIGHTS | SEARCH)
    assert "start offsets                              not run: the decoder does not read" in outcome.out
    assert outcome.out.endswith("28 of 28 invariants hold\n")


def test_a_model_that_fails(tmp_path: Path) -> None:
    stays = "    def reorder_state(self, module_state, new_order):\n        return module_state\n\n    def output_layer"
    outcome = check(own_model(tmp_path, "unmoved", "    def output_layer", stays), "model=unmoved_tiny", *SMALL_LSTM)
    assert outcome.code == 1
    found = r"^steps after reordering beams .* failed .*\n    step 2, sentence 0, beam 0: the logits differ"
    assert re.search(found, outcome.out, re.MULTILINE), outcome.out
    cause = Subject.advice["steps after any order of rows"].partition(" @")[0]
    assert f"probable cause: {cause}; see LSTMDecoder.reorder_state ({tmp_path}/unmoved.py:" in outcome.out


def test_a_model_that_raises(tmp_path: Path) -> None:
    begin = "    def output_layer(self, features: Tensor) -> Tensor:\n"
    raises = own_model(tmp_path, "raising", begin, begin + "        1/0\n")
    outcome = check(raises, "model=raising_tiny", *SMALL_LSTM)
    assert outcome.code == 1
    line = (tmp_path / "raising.py").read_text().splitlines().index("        1/0") + 1
    assert outcome.out.count(f"\n    ZeroDivisionError: division by zero ({tmp_path}/raising.py:{line})\n") == 1
    assert outcome.out.count("\n    the same error\n") > 20
    assert outcome.out.splitlines()[-1] == f"probable cause: {ERROR}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5", "t5_v1_1"])
def test_a_folder_of_another_toolkit(kind: str, tmp_path: Path) -> None:
    tiny_folder(tmp_path / "T5", kind)
    outcome = check(f"path={tmp_path}/T5")
    assert outcome.code == 0, outcome.out


def test_models_that_cannot_be_checked(tmp_path: Path) -> None:
    given = "        source, target = task.source_dictionary, task.target_dictionary\n"
    outcome = check(own_model(tmp_path, "unbuilt", given, "        task.missing\n"), "model=unbuilt_tiny")
    refused(outcome, "dictionaries of a task: AttributeError:")
    hook = "    def output_layer(self, features: Tensor) -> Tensor:"
    outcome = check(
        own_model(tmp_path, "open", hook, hook.replace("output_layer", "x")), "model=open_tiny", *SMALL_LSTM
    )
    assert f"LSTMDecoder ({tmp_path}/open.py:" in outcome.out
    assert ") does not define output_layer, which it needs" in outcome.out
