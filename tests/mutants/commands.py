"""Faults in ``cli``."""

from __future__ import annotations

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "cli/score.py",
        "self.words += len(text.split()) + 1",
        "self.words += len(text.split())",
        "the perplexity per word does not count the ends of lines",
        (
            "tests/cli/test_commands.py::test_the_scorer_command_gives_the_generators_scores",
            "tests/tasks/test_language_modeling.py",
        ),
    ),
    Fault(
        "cli/score.py",
        'Options(metrics, tests != "none", tests == "both",',
        'Options(metrics, tests != "none", tests != "none",',
        "the bootstrap alone makes the other test too",
        ("tests/lab/test_comparison.py",),
    ),
    Fault(
        "cli/score.py",
        'del settings["combination"]',
        "pass",
        "the scorer ignores how the first model combines the members",
        ("tests/cli/test_commands.py",),
    ),
    Fault(
        "cli/convert.py",
        '"export": ("formats", "opset", "reading"),',
        '"export": ("formats", "opset", "name", "reading"),',
        "a key that has no effect on an export is accepted",
        ("tests/cli/test_convert.py",),
    ),
    Fault(
        "cli/convert.py",
        "config.generation = dataclasses.replace(config.generation, **loaded.generation)",
        "pass",
        "a run that is made of a Hugging Face folder forgets how it is decoded",
        ("tests/cli/test_convert.py", "tests/models/huggingface/test_writing.py"),
    ),
    Fault(
        "cli/train.py",
        "return _with_tokenizer({**model, **task, **given}, folder,",
        "return _with_tokenizer({**given, **model, **task}, folder,",
        "keys of a checkpoint override those that the user gives",
        ("tests/training/test_finetuning.py", "tests/cli/test_commands.py"),
    ),
    Fault(
        "cli/command.py",
        "used = {key: value for key, value in pairs.items() if key not in given}",
        "used = dict(pairs)",
        "a file overrides the command line",
        ("tests/cli/test_config_file.py",),
    ),
    Fault(
        "cli/command.py",
        'found[key] = "command line" if key in own else file',
        'found[key] = file if key in self.files else "command line"',
        "values that a checkpoint gives seem typed",
        ("tests/cli/test_config_file.py",),
    ),
    Fault(
        "cli/output.py",
        'if name not in ("", "-") and Path(name).resolve() == place.resolve():',
        'if name not in ("", "-") and name == path:',
        "an output may overwrite its input under another spelling of the path",
        ("tests/cli/test_generate_options.py", "tests/cli/test_notes.py", "tests/jobs/test_command.py"),
    ),
    Fault(
        "cli/line_decoding.py",
        'lambda text: re.sub(r"@@( |$)", "", text)',
        'lambda text: re.sub(r"@@ ", "", text)',
        "the mark of a word that was cut off stays",
        ("tests/text/test_corpus_metrics.py",),
    ),
    Fault(
        "cli/score.py",
        "([Path(file).stem for file in files], [Path(file).name for file in files])",
        "([Path(file).stem for file in files],)",
        "systems in files of one name with other endings are named by their paths",
        ("tests/lab/test_comparison.py",),
    ),
    Fault(
        "cli/train.py",
        'rows.sort(key=lambda row: float("inf") if row[1] is None else sign * row[1])',
        'rows.sort(key=lambda row: float("inf") if row[1] is None else row[1])',
        "the best run of a sweep by BLEU is the last one",
        ("tests/lab/test_runs.py",),
    ),
    Fault(
        "cli/record.py",
        "        elif digest(Path(name)) != expected:\n",
        "        elif not expected:\n",
        "a record does not notice that a file has changed",
        ("tests/lab/test_runs.py",),
    ),
    Fault(
        "cli/record.py",
        'file.name.startswith(("training_state", "."))',
        'file.name.startswith(".")',
        "a decode cannot be repeated after training went on",
        ("tests/lab/test_runs.py",),
    ),
    Fault(
        "cli/generate.py",
        "if not cfg.input and references is None:",
        "if references is None:",
        "the references of a split are those of any input",
        ("tests/cli/test_commands.py", "tests/cli/test_generate_options.py"),
    ),
    Fault(
        "cli/command.py",
        'fail(program, "interrupted", 130)',
        'fail(program, "interrupted", 2)',
        "an interrupted command ends as after a wrong key",
        ("tests/lab/test_tune.py",),
    ),
]
