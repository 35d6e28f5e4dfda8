"""Greedy decoding of a model that ``seqgen-convert format=export`` has written, with onnxruntime and numpy alone.

``python examples/onnx_greedy.py DIR < FILE`` prints one output for each line of the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

from seqgen.data.tokenizers.base import load_tokenizer  # which does not import PyTorch


class ExportedModel:
    """A model in a folder of ``seqgen-convert format=export``.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path):
        self.info = json.loads((folder / "export.json").read_text(encoding="utf-8"))
        self.encoder, self.step = (
            onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
            for name in ("encoder", "step")
        )
        shared = (folder / "tokenizer").is_dir()
        self.source, self.target = (
            load_tokenizer(folder / ("tokenizer" if shared else f"{side}_tokenizer")) for side in ("source", "target")
        )
        self.target = self.target.target_side

    def greedy(self, lines: list[str], max_len: int = 200) -> list[list[int]]:
        """Decode lines in one batch: at each step, each line gets the token with the largest logit.

        Args:
            lines: the source lines.
            max_len: largest number of tokens of an output, without end-of-sentence.

        Returns:
            The ids of each output, without end-of-sentence.

        Raises:
            ValueError: a line is longer than the encoder can read.
        """
        if not lines:
            return []
        info, begin = self.info, self.info["prompt_begin"]
        if begin is None:
            sources = [self.source.encode_source(line) for line in lines]
        else:  # of a language model, whose first token is never padding
            sources = [[*begin, *self.source.encode(line)] for line in lines]
        rows, width = len(sources), max(len(ids) for ids in sources)
        if width > (longest := info["max_source_length"]):
            raise ValueError(f"a line has {width} tokens, but the model reads at most {longest}; split the line")
        src_tokens = np.full((rows, width), info["source_pad"], dtype=np.int64)
        for row, ids in zip(src_tokens, sources, strict=True):
            row[: len(ids)] = ids
            if info["padding_side"] == "left":
                row[:] = np.roll(row, width - len(ids))
        read = [output["name"] for output in info["encoder"]["outputs"]]
        feeds = dict(zip(read, self.encoder.run(None, {"src_tokens": src_tokens}), strict=True))
        for tensor in info["step"]["inputs"]:
            if tensor["name"] in info["state"]:  # zeros, with no positions seen
                shape = [{"rows": rows, "seen": 0}.get(size, size) for size in tensor["shape"]]
                feeds[tensor["name"]] = np.zeros(shape, tensor["dtype"])
        tokens = np.full((rows, 1), info["start"], dtype=np.int64)
        done = np.zeros(rows, dtype=bool)
        while not done.all() and tokens.shape[1] <= min(max_len, info["max_target_length"] - 1):
            logits, *state = self.step.run(None, {"prev_output_tokens": tokens, **feeds})
            feeds.update(zip(info["state"], state, strict=True))
            if info["pad"] != info["eos"]:
                logits[:, info["pad"]] = -np.inf
            chosen = np.where(done, info["eos"], logits.argmax(1))
            done |= chosen == info["eos"]
            tokens = np.concatenate([tokens, chosen[:, None]], axis=1)
        ends = [[*row, info["eos"]].index(info["eos"]) for row in tokens[:, 1:].tolist()]
        return [row[:end] for row, end in zip(tokens[:, 1:].tolist(), ends, strict=True)]


def main() -> None:
    """Decode standard input; the output of an empty line is empty."""
    if len(sys.argv) != 2 or not Path(sys.argv[1], "step.onnx").is_file():
        sys.exit("usage: python examples/onnx_greedy.py DIR, a folder that seqgen-convert has written, with ONNX files")
    model = ExportedModel(Path(sys.argv[1]))
    lines = sys.stdin.read().split("\n")
    try:
        outputs = iter(model.greedy([line for line in lines if line.strip()]))
    except ValueError as error:
        sys.exit(str(error))
    for line in lines[:-1] if not lines[-1] else lines:
        print(model.target.decode(next(outputs)) if line.strip() else "")


if __name__ == "__main__":
    main()
