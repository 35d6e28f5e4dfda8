"""Faults in what training saves, records and shows, and in ``seqgen/system``."""

from __future__ import annotations

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "seqgen/training/averaging.py",
        "return found[-count:]",
        "return found[:count]",
        "the oldest checkpoints are averaged",
        ("tests/training/test_checkpoints.py",),
    ),
    Fault(
        "seqgen/training/averaging.py",
        "sums = {name: first[name].double() for",
        "sums = {name: first[name].clone() for",
        "averages are summed in the precision of the weights",
        ("tests/training/test_checkpoints.py",),
    ),
    Fault(
        "seqgen/training/averaging.py",
        'return "drop" in name or name == "checkpoint_activations"',
        "return True",
        "models of different architectures are averaged",
        ("tests/checkpoints/test_average.py",),
    ),
    Fault(
        "seqgen/training/run_log.py",
        "if _update_of(line) <= update]",
        "if _update_of(line) < update]",
        "a resumed run loses the record of the update that was saved",
        ("tests/training/test_progress.py",),
    ),
    Fault(
        "seqgen/training/saving.py",
        'self.checkpoints.prune("update", self.cfg.keep_interval_updates)',
        'self.checkpoints.prune("update", self.cfg.keep_last_epochs)',
        "checkpoints of updates are kept as those of epochs",
        ("tests/training/test_loop.py::test_what_is_saved_when",),
    ),
    Fault(
        "seqgen/training/training_loop.py",
        "(updates > 0 and update % updates == 0)",
        "(updates > 0 and epoch % updates == 0)",
        "intervals in updates are counted in epochs",
        ("tests/training/test_loop.py::test_what_is_saved_when",),
    ),
    Fault(
        "seqgen/training/training_loop.py",
        "cfg.stop_time_hours * 3600 <= seconds",
        "cfg.stop_time_hours * 60 <= seconds",
        "the time limit is in minutes",
        ("tests/training/test_loop.py::test_limits_of_a_training_by_hand",),
    ),
    Fault(
        "seqgen/training/training_loop.py",
        "lr <= cfg.stop_min_lr and not warming_up",
        "lr <= cfg.stop_min_lr",
        "training stops during the warm-up, where the rate is still low",
        ("tests/training/test_loop.py::test_reasons_to_stop",),
    ),
    Fault(
        "seqgen/training/validation.py",
        "result.lengths += [(len(s.hypothesis), len(s.reference)) for s in samples]",
        "result.lengths += [(len(s.hypothesis), len(s.source)) for s in samples]",
        "outputs are compared with the lengths of the sources",
        ("tests/training/test_loop.py::test_lengths_of_outputs_stand_beside_those_of_references",),
    ),
    Fault(
        "seqgen/training/progress.py",
        "        vars(self).update({name: state[name] for name in self.state_dict()})\n        self._last",
        '        vars(self).update({name: state[name] for name in ("sums", "gnorm", "updates", "skipped")})\n        self._last',
        "the time before a run was resumed is forgotten",
        ("tests/training/test_progress.py",),
    ),
    Fault(
        "seqgen/system/progress.py",
        "rate = (self.done - self.before)",
        "rate = self.done",
        "lines that were done before count for the speed",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/system/files.py",
        "place.is_relative_to(run) and not place.is_relative_to(run / CACHE)",
        "place.is_relative_to(run)",
        "the text of a trained run cannot be encoded again",
        ("tests/system/test_files.py",),
    ),
    Fault(
        "seqgen/system/processes.py",
        "return 128 + self.received if self.received else 0",
        "return self.received",
        "a signal ends a command with its own number as the exit code",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/system/mapped_weights.py",
        "if now != file.version and now[:2] == file.version[:2] and file.in_use:",
        "if now != file.version and file.in_use:",
        "a file that was replaced counts as damaged",
        ("tests/system/test_mapped_weights.py",),
    ),
    Fault(
        "seqgen/system/reading.py",
        "values, height = values + below, max(height, levels + 1)",
        "values, height = values + 1, max(height, levels + 1)",
        "aliases of YAML are not counted",
        ("tests/cli/test_config_file.py", "tests/repository/test_hostile_files.py"),
    ),
]
