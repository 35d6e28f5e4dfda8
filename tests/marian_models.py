"""Runs under pymarian 1.12.42, in an environment without seqgen: trains small models and writes them with n-best lists.

Then it runs under CTranslate2 4.8.5, which adds log-probabilities of given outputs, for models that it supports::

    python tests/marian_models.py tests/recorded/marian
    python tests/marian_models.py tests/recorded/marian ctranslate2
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

WORDS = ["no", "1", "~", "w:", ":", "#", '"', "'", "\\", "▁a", "ß", "{x", "1.5", "null", "a'b", 'c"d', "\x85", "é"]
SIZES = "--dim-emb 8 --transformer-heads 2 --transformer-dim-ffn 12 --enc-depth 1"
TRAINING = "--type transformer --mini-batch 8 --after-batches 40 --learn-rate 0.01 --workspace 100 --seed 1 --overwrite"
SSRU = "--transformer-decoder-autoreg rnn --dec-cell ssru"
PRE = "--transformer-preprocess n --transformer-postprocess da --transformer-postprocess-top n"
MODELS = {
    "transformer": "--tied-embeddings-all --dec-depth 2",
    "untied": "--transformer-postprocess-emb nd --dec-depth 1 --transformer-ffn-activation relu",
    "pre": f"--tied-embeddings {PRE} --transformer-postprocess-emb nd --dec-depth 1",
    "ssru": f"{SSRU} --tied-embeddings --dec-depth 2",
    "ssru-pre": f"{SSRU} {PRE} --tied-embeddings-all --dec-depth 1",
}
SETTINGS = [(1, 0), (4, 0), (4, 0.6), (4, 1), (7, 1)]
"""Beams, and exponents of the length."""
LINES = ["no ß #", ": ▁a", "' \\ é w: 1 unseen", "1"]
OUTPUTS = ["no", ": : ▁a 1 ~", "' \\ é w:", ""]
OPTIONS, POSITIONS = "special:model.yml", 64


def main(folder: Path) -> None:
    import _pymarian  # type: ignore[import-not-found]

    folder = folder.resolve()
    rng = random.Random(0)
    os.chdir(tempfile.mkdtemp())
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) for _ in range(300)]
    for name in ("source", "target"):
        Path(name).write_text("\n".join(lines) + "\n")
    results: dict[str, Any] = {}
    for name, options in MODELS.items():
        model, vocabulary = f"{name}.npz", "vocab.yml"  # Marian writes the vocabulary when it trains the first model
        given = f"--train-sets source target --vocabs {vocabulary} {vocabulary} --model {model} --cpu-threads 1 --quiet"
        _pymarian.Trainer(f"{given} {SIZES} {TRAINING} {options}").train()
        results[name] = {"nbest": []}
        for beam, normalize in SETTINGS:
            decoding = f"--n-best --word-scores --beam-size {beam} --normalize {normalize} --cpu-threads 1 --quiet"
            made = _pymarian.Translator(f"-m {model} -v {vocabulary} {vocabulary} {decoding}").translate(
                "\n".join(LINES)
            )
            lists: list[list[Any]] = [[] for _ in LINES]
            for line in made.strip("\n").split("\n"):
                number, text, words, _, score = line.split(" ||| ") if " |||  ||| " not in line else _empty(line)
                lists[int(number)].append([text, float(score), [float(one) for one in words.split()[1:]]])
            results[name]["nbest"].append({"beam": beam, "normalize": normalize, "lists": lists})
        (folder / model).write_bytes(Path(model).read_bytes())
    (folder / vocabulary).write_bytes(Path(vocabulary).read_bytes())
    (folder / "results.json").write_text(json.dumps(results, ensure_ascii=False))


def _empty(line: str) -> list[str]:
    number, _, rest = line.partition(" |||  ||| ")
    return [number, "", *rest.split(" ||| ")]


def add_scores(folder: Path) -> None:
    import ctranslate2  # type: ignore[import-not-found]
    import numpy as np
    from ctranslate2.converters import MarianConverter  # type: ignore[import-not-found]

    results = json.loads((folder / "results.json").read_text())
    for name in MODELS:
        if "ssru" in name:
            continue
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
            results[name]["scores"] = [
                [round(x, 6) for x in scored.log_probs] for scored in translator.score_batch(*pairs)
            ]
    (folder / "results.json").write_text(json.dumps(results, ensure_ascii=False))


if __name__ == "__main__":
    (add_scores if "ctranslate2" in sys.argv else main)(Path(sys.argv[1]))
