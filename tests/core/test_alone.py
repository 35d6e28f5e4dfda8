"""The core alone: a folder that has only seqgen/core decodes with a model of thirty lines."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CORE = ROOT / "seqgen" / "core"

PROGRAM = """\
import torch
from torch import nn
from seqgen.core import BeamSearch, Encoder, EncoderDecoderModel, EncoderOut, IncrementalDecoder, SequenceGenerator
from seqgen.core import Setup, Source


class Bag(Encoder):
    def __init__(self, vocab):
        super().__init__()
        self.embed = nn.Embedding(vocab, 16)

    def forward(self, src_tokens, src_lengths):
        return EncoderOut(self.embed(src_tokens), src_tokens.eq(0))          # (N, S, 16), padding


class Steps(IncrementalDecoder):
    def __init__(self, vocab):
        super().__init__()
        self.embed, self.out = nn.Embedding(vocab, 16), nn.Linear(16, vocab)
        self.cell = nn.GRU(16, 16, batch_first=True)

    def extract_features(self, prev_output_tokens, encoder_out, incremental_state=None, **_):
        start = self.positions_seen(incremental_state)
        state = self.get_state(incremental_state) or {"h": encoder_out.encoder_out.mean(1, keepdim=True)}  # (N, 1, 16)
        features, h = self.cell(self.embed(prev_output_tokens[:, start:]), state["h"].transpose(0, 1).contiguous())
        self.set_state(incremental_state, {"h": h.transpose(0, 1)})
        self.advance(incremental_state, features.size(1))
        return features, None

    def output_layer(self, features):
        return self.out(features)


models = [EncoderDecoderModel(Bag(20), Steps(20)) for _ in range(2)]
setup = Setup(models, BeamSearch(), beam_size=5, eos=1, pad=0, max_len=30)
for hypotheses in SequenceGenerator(setup).generate(Source(torch.tensor([[5, 6, 1], [7, 1, 0]]), torch.tensor([3, 2]))):
    print(hypotheses[0].tokens, hypotheses[0].score)
"""


@pytest.mark.slow
def test_the_core_alone_decodes(tmp_path: Path) -> None:
    shutil.copytree(CORE, tmp_path / "seqgen" / "core")
    shutil.copy(ROOT / "seqgen" / "__init__.py", tmp_path / "seqgen")
    program = f"import sys\nimport torch\ntorch.manual_seed(1)\n{PROGRAM}"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": "."}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 2  # the best hypothesis of each sentence
    assert all(line.startswith("tensor([") for line in found.stdout.splitlines())


def test_the_core_imports_torch_the_standard_library_and_itself() -> None:
    """Also inside functions, and for type checkers."""
    for path in CORE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.partition(".")[0]
                allowed = top in {"torch", *sys.stdlib_module_names} or name.startswith("seqgen.core.")
                assert allowed, f"{path.name} imports {name}"


def test_an_index_of_names_is_complete() -> None:
    import seqgen.core

    for name in dir(seqgen.core):
        assert getattr(seqgen.core, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        _ = seqgen.core.Sesion
