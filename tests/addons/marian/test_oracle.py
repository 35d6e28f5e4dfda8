"""Models that Marian trained give its n-best lists, and the log-probabilities of CTranslate2."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.core.errors import CheckpointError
from seqgen.text.translator import Translator
from tests.addons.marian.test_files import RECORDED
from tests.commands import command
from tests.marian_models import LINES, MODELS, OUTPUTS

RESULTS: dict[str, Any] = json.loads((RECORDED / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "pre"])
def test_n_best_lists_are_those_of_marian(name: str) -> None:
    translator = Translator(RECORDED / f"{name}.npz")
    for given in RESULTS[name]["nbest"]:
        beam = given["beam"]
        made = translator.translate(LINES, beam=beam, nbest=beam, length_penalty=given["normalize"])
        for translation, wanted in zip(made, given["lists"], strict=True):
            assert [one.text for one in translation.hypotheses] == [text for text, _, _ in wanted]
            for hypothesis, (_, score, words) in zip(translation.hypotheses, wanted, strict=True):
                assert hypothesis.score == pytest.approx(score, rel=5e-5, abs=5e-5)
                torch.testing.assert_close(hypothesis.positional_scores, torch.tensor(words), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in MODELS if "ssru" not in name])
def test_log_probabilities_are_those_of_ctranslate2(name: str) -> None:
    translator = Translator(RECORDED / f"{name}.npz")
    for hypothesis, wanted in zip(translator.score(LINES, OUTPUTS), RESULTS[name]["scores"], strict=True):
        torch.testing.assert_close(hypothesis.positional_scores, torch.tensor(wanted), rtol=0, atol=1e-4)


def test_the_decoder_of_a_pre_norm_model_computes_what_was_trained() -> None:
    """Marian's decoder normalizes the inputs of self-attention in training and at the first step only."""
    translator = Translator(RECORDED / "pre.npz")
    wanted = RESULTS["pre"]["nbest"][0]["lists"]
    made = translator.translate(LINES, beam=1, length_penalty=0)
    for translation, [[_, _, words]] in zip(made, wanted, strict=True):
        first = float(translation.hypotheses[0].positional_scores[0])
        assert first == pytest.approx(words[0], abs=5e-5)
        scored = next(translator.score([translation.source], [translation.hypotheses[0].text]))
        assert float(scored.positional_scores[0]) == pytest.approx(first, abs=1e-5)


def folder_of(tmp_path: Path, name: str = "transformer") -> Path:
    """A folder as OPUS-MT's archives have it."""
    for file in (f"{name}.npz", "vocab.yml"):
        shutil.copy(RECORDED / file, tmp_path / file)
    vocabularies = "vocabs:\n  - /elsewhere/vocab.yml\n  - vocab.yml\n"
    settings = "beam-size: 4\nnormalize: 0.6\nword-penalty: 0\nmini-batch: 1\n"
    (tmp_path / "decoder.yml").write_text(f"relative-paths: true\nmodels:\n  - {name}.npz\n{vocabularies}{settings}")
    return tmp_path


def test_a_folder_with_its_decoding_settings(tmp_path: Path) -> None:
    translator = Translator(folder_of(tmp_path))
    given = next(one for one in RESULTS["transformer"]["nbest"] if (one["beam"], one["normalize"]) == (4, 0.6))
    made = translator.translate(LINES)
    assert [one.hypotheses[0].text for one in made] == [wanted[0][0] for wanted in given["lists"]]
    assert translator.members[0].task.translates
    (tmp_path / "decoder.yml").rename(tmp_path / "transformer.npz.decoder.yml")  # as Marian's training writes it
    again = Translator(tmp_path).translate(LINES)
    assert [one.text for one in again] == [one.text for one in made]
    shutil.copy(tmp_path / "transformer.npz.decoder.yml", tmp_path / "other.npz.decoder.yml")
    with pytest.raises(CheckpointError, match=r"has 2 models; give the file of one of them"):
        Translator(tmp_path)


def test_a_run_made_of_a_model_decodes_alike(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    folder, run = folder_of(tmp_path / "model", "ssru"), tmp_path / "run"
    assert command("convert", f"path={folder}", f"output={run}").code == 0
    one, other = (
        [[item.score for item in made.hypotheses] for made in Translator(path).translate(LINES, beam=3, nbest=3)]
        for path in (folder, run)
    )
    assert one == other
