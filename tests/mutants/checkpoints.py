"""Faults in ``seqgen/checkpoints``."""

from __future__ import annotations

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "seqgen/checkpoints/initialization.py",
        'not name.startswith(prefix) or "position" in name',
        "not name.startswith(prefix)",
        "positions get the rows of new tokens",
        ("tests/training/test_finetuning.py",),
    ),
    Fault(
        "seqgen/checkpoints/decoding_task.py",
        "if self.cfg.begin_with_eos or not ids else ids",
        "if self.cfg.begin_with_eos else ids",
        "an empty prompt has no token",
        ("tests/models/test_language_models.py", "tests/models/huggingface/test_gpt2.py"),
    ),
    Fault(
        "seqgen/checkpoints/run_config.py",
        '{**to_dict(cfg), "semantics": semantics}',
        "to_dict(cfg)",
        "saving decoding settings loses the rules of the run",
        ("tests/checkpoints/test_run_record.py",),
    ),
    Fault(
        "seqgen/checkpoints/model_weights.py",
        "        elif not (file and file.lend(parameters[name], tensor)):",
        "        elif file and not file.lend(parameters[name], tensor):",
        "weights are not read where files are not mapped",
        ("tests/system/test_mapped_weights.py", "tests/training/test_checkpoints.py"),
    ),
    Fault(
        "seqgen/checkpoints/run_record.py",
        "[freq * config.get(_WORLD_SIZE, 1) for freq",
        "[freq for freq",
        "a run cannot be continued by more processes with fewer batches each",
        ("tests/training/test_resume.py",),
    ),
    Fault(
        "seqgen/checkpoints/run_record.py",
        "            if complete:\n",
        "            if not complete:\n",
        "a trained run may lack a tokenizer",
        ("tests/checkpoints/test_run_record.py",),
    ),
    Fault(
        "seqgen/checkpoints/run_checkpoints.py",
        'key=lambda path: int(path.name.rpartition("_")[2])',
        "key=lambda path: path.name",
        "epoch 10 comes before epoch 9",
        ("tests/training/test_checkpoints.py",),
    ),
    Fault(
        "seqgen/checkpoints/run_checkpoints.py",
        '(given, given / FOLDER / "best", given / FOLDER / "last")',
        '(given, given / FOLDER / "last", given / FOLDER / "best")',
        "a run is decoded with its last checkpoint instead of the best one",
        ("tests/training/test_checkpoints.py",),
    ),
    Fault(
        "seqgen/checkpoints/run_checkpoints.py",
        "            if _identity(checkpoint) == before:\n                return found\n",
        "            return found\n",
        "weights that were read from two checkpoints are returned",
        ("tests/training/test_checkpoints.py",),
    ),
    Fault(
        "seqgen/checkpoints/serialization.py",
        "tuple(tensor.shape), tensor.stride())",
        "tuple(tensor.shape))",
        "a transposed square matrix is saved as the one that it shares memory with",
        ("tests/training/test_checkpoints.py",),
    ),
    Fault(
        "seqgen/checkpoints/sharded.py",
        "            if sum(parts.values()) != math.prod(tensor.size):\n",
        "            if not parts:\n",
        "a sharded checkpoint of which parts are missing is read",
        ("tests/training/test_sharded.py",),
    ),
    Fault(
        "seqgen/checkpoints/hub.py",
        "hf_hub_download(repository, name, revision=folder.name)",
        "hf_hub_download(repository, name, revision=revision)",
        "files of two versions of a model may be mixed",
        ("tests/checkpoints/test_hub.py",),
    ),
]
