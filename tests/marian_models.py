"""Inputs of the recorded models of Marian, and the scripts that record what pymarian and CTranslate2 make of them.

They run in an environment without seqgen: pymarian 1.12.42, which has trained the models, writes n-best lists,
and CTranslate2 4.8.5 adds log-probabilities of given outputs, for models that it supports::

    python tests/marian_models.py tests/recorded/marian
    python tests/marian_models.py tests/recorded/marian ctranslate2
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

WORDS = ["no", "1", "~", "w:", ":", "#", '"', "'", "\\", "▁a", "ß", "{x", "1.5", "null", "a'b", 'c"d', "\x85", "é"]
MODELS = ("transformer", "untied", "pre", "ssru", "ssru-pre")
LINES = ["no ß #", ": ▁a", "' \\ é w: 1 unseen", "1"]
OUTPUTS = ["no", ": : ▁a 1 ~", "' \\ é w:", ""]
OPTIONS, POSITIONS = "special:model.yml", 64


def add_lists(folder: Path, name: str, results: dict[str, Any]) -> None:
    import _pymarian  # type: ignore[import-not-found]

    for given in results["nbest"]:
        settings = f"--n-best --word-scores --beam-size {given['beam']} --normalize {given['normalize']} --quiet"
        files = f"-m {folder}/{name}.npz -v {folder}/vocab.yml {folder}/vocab.yml"
        given["lists"] = [[] for _ in LINES]
        made = _pymarian.Translator(f"{files} {settings} --cpu-threads 1").translate("\n".join(LINES))
        for line in made.strip("\n").split("\n"):
            number, text, words, _, score = line.split(" ||| ")
            given["lists"][int(number)].append([text, float(score), [float(one) for one in words.split()[1:]]])


def add_scores(folder: Path, name: str, results: dict[str, Any]) -> None:
    import ctranslate2  # type: ignore[import-not-found]
    import numpy as np
    from ctranslate2.converters import MarianConverter  # type: ignore[import-not-found]

    if "ssru" in name:
        return
    with tempfile.TemporaryDirectory() as work:
        arrays = dict(np.load(folder / f"{name}.npz"))
        options = arrays[OPTIONS].tobytes().rstrip(b"\0") + b"\0"  # the converter expects one zero
        dim = arrays["encoder_l1_self_Wq"].shape[0]
        angles = np.arange(POSITIONS)[:, None] * 10000 ** (-np.arange(dim // 2) / (dim // 2 - 1))
        # the positions that Marian computes; without them the converter makes others
        positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
        arrays |= {OPTIONS: np.frombuffer(options, dtype=np.int8), "Wpos": positions}
        np.savez(f"{work}/model.npz", **arrays)
        MarianConverter(f"{work}/model.npz", [str(folder / "vocab.yml")] * 2).convert(f"{work}/converted")
        translator = ctranslate2.Translator(f"{work}/converted", "cpu", compute_type="float32", intra_threads=1)
        pairs = [line.split() for line in LINES], [output.split() for output in OUTPUTS]
        results["scores"] = [[round(x, 6) for x in scored.log_probs] for scored in translator.score_batch(*pairs)]


if __name__ == "__main__":
    path = Path(sys.argv[1]) / "results.json"
    everything = json.loads(path.read_text())
    for model, recorded in everything.items():
        (add_scores if "ctranslate2" in sys.argv else add_lists)(path.parent, model, recorded)
    path.write_text(json.dumps(everything, ensure_ascii=False))
