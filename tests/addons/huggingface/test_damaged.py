"""Nothing in a folder is run, and no other model's code is imported to read it."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from seqgen.extend import CheckpointError, load_model
from tests.hostile import Trap
from tests.huggingface_t5 import change_config, tiny_folder


def test_nothing_in_a_folder_is_run(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5")
    change_config(folder, auto_map={"AutoModel": "evil.Model"})
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'exploded')!r}, 'w')")
    load_model(folder)
    (folder / "model.safetensors").unlink()
    content = {"shared.weight": Trap(os.mkdir, str(tmp_path / "exploded")), "size": bytes(100_000)}
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(CheckpointError, match="contains code"):
        load_model(folder)
    assert not (tmp_path / "exploded").exists()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"shared.weight": "../x.safetensors"}}')
    with pytest.raises(CheckpointError, match="names files outside its folder"):
        load_model(folder)


@pytest.mark.slow
def test_only_the_models_own_module_is_imported(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5")
    script = """
import sys, seqgen.models
from seqgen.checkpoints.loading import load_model
load_model(sys.argv[1])
assert not {"seqgen.models.fconv", "seqgen.models.transformer", "transformers"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True)
