"""What ``--help`` shows of each command: examples, and the keys that most people use."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "seqgen-train": (
        ("train on DATA/train.en, DATA/train.de, DATA/val.en and DATA/val.de",
         "seqgen-train run_dir=runs/a task=translation task.source_lang=en \\\n"
         "      task.target_lang=de task.train=DATA/train task.valid=DATA/val \\\n"
         "      model=transformer_tiny optimization.max_update=8000"),
        ("train again with the configuration of a run and another learning rate",
         "seqgen-train config=runs/a/config.yaml run_dir=runs/b optimization.lr=1e-3"),
        ("one run for each combination of values",
         "seqgen-train -m run_dir=runs/sweep model=fconv_tiny,t5_tiny common.seed=1,2"),
        ("encode the text in advance",
         "seqgen-train prepare_only=true run_dir=runs/a task=translation \\\n"
         "      task.source_lang=en task.target_lang=de task.train=DATA/train \\\n"
         "      task.valid=DATA/val"),
    ),
    "seqgen-generate": (
        ("decode a file with beam search, and score the output",
         "seqgen-generate path=runs/a input=test.en output=test.hyp \\\n"
         "      reference=test.de generation.beam=5"),
        ("type sentences at the terminal", "seqgen-generate path=runs/a input=-"),
        ("repeat a decode that was recorded with record=test.json",
         "seqgen-generate config=test.json output=again.hyp"),
        ("much text with two processes; repeat the command to continue after a kill",
         "seqgen-generate path=runs/a input=big.txt.gz output=big.out \\\n"
         "      generation.workers=2"),
        ("see in a browser what the search did, with seqgen-show trace.jsonl.gz",
         "seqgen-generate path=runs/a input=test.en output=test.hyp \\\n"
         "      reference=test.de trace=trace.jsonl.gz"),
        ("the n-best lists again, from the trace alone",
         "seqgen-generate replay=trace.jsonl.gz format=json output=again.json"),
        ("an ensemble; all hypotheses with their scores",
         "seqgen-generate path=[runs/a,runs/b] input=test.en output=test.json \\\n"
         "      format=json generation.nbest=5"),
    ),
    "seqgen-score": (
        ("BLEU, chrF and exact match", "seqgen-score hypothesis=test.hyp reference=test.de"),
        ("three systems: intervals, paired tests, and where they differ",
         "seqgen-score hypothesis=[a.hyp,b.hyp,c.hyp] reference=test.de \\\n"
         "      source=test.en page=comparison.html"),
        ("the log-probability of each reference under a model",
         "seqgen-score path=runs/a source=test.en reference=test.de"),
    ),
    "seqgen-convert": (
        ("make a run of a model of another toolkit", "seqgen-convert path=model.pt output=runs/converted"),
        ("write a run as a Hugging Face folder",
         "seqgen-convert path=runs/a format=huggingface output=FOLDER"),
        ("average the last five checkpoints of a run", "seqgen-convert path=runs/a format=average last=5"),
        ("write a model as ONNX files and as files of torch.export",
         "seqgen-convert path=runs/a format=export output=exported"),
    ),
    "seqgen-tune": (
        ("the best length penalty and beam size on the validation split",
         "seqgen-tune path=runs/a tune.generation.lenpen=0.6,1,1.4 \\\n"
         "      tune.generation.beam=4,8"),
    ),
    "seqgen-show": (
        ("runs as a table, and their learning curves as a page",
         "seqgen-show path=[runs/a,runs/b] sort=loss page=runs.html"),
        ("a trace of seqgen-generate in a browser", "seqgen-show path=trace.jsonl.gz page=trace.html"),
        ("the languages of a multilingual model", "seqgen-show path=runs/a languages=true"),
    ),
    "seqgen-diff": (
        ("how two runs differ", "seqgen-diff runs=[runs/a,runs/b]"),
        ("why do two models decode a file differently?",
         "seqgen-diff path=runs/a other=runs/b input=test.en"),
    ),
    "seqgen-check": (
        ("check the invariants of a model", "seqgen-check model=transformer_tiny"),
    ),
}  # fmt: skip
"""By the name of the program: what a command line does, and the command line. ``--help`` shows the first."""

COMMON_KEYS: dict[str, tuple[str, ...]] = {
    "seqgen-train": (
        "run_dir", "task", "task.train", "task.valid", "task.source_lang", "task.target_lang", "model",
        "dataset.max_tokens", "optimization.max_update", "optimization.lr",
    ),
    "seqgen-generate": (
        "path", "input", "output", "reference", "format", "generation.beam", "generation.lenpen", "generation.nbest",
        "generation.batch_size", "trace", "common.device",
    ),
    "seqgen-score": ("hypothesis", "reference", "source", "path", "metrics", "page", "json"),
    "seqgen-tune": ("path", "input", "reference", "output", "method", "metric", "common.device"),
    "seqgen-convert": ("path", "output", "format", "formats", "last", "source_lang", "target_lang"),
}  # fmt: skip
"""By the name of a program with many keys, those that ``--help`` lists; of others it lists those without group."""
