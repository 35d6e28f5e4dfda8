"""Sweeps: the values that runs get, what is trained again, and what a sweeper optimizes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seqgen.addons.sweeps import sweep as module
from seqgen.addons.sweeps.sweep import Job, split, sweep
from seqgen.cli.help import EXAMPLES
from tests.commands import SMALL_FCONV, Outcome, command, done, training_arguments
from tests.refusals import refusals

NASTY = "dä=1,2 it's"
"""The name of the folder of the text: one value, in which Hydra's grammar would find two."""


@pytest.fixture
def base(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of a small training of two updates in the working folder, on a text in ``NASTY``."""
    monkeypatch.chdir(tmp_path)
    Path(NASTY).symlink_to(data)
    return [*training_arguments(Path(NASTY), Path("s x=1,ü")), *SMALL_FCONV, "optimization.max_update=2"]


def folders() -> list[str]:
    return sorted(path.name for path in Path("s x=1,ü").iterdir() if path.is_dir() and path.name != ".submitit")


def logs() -> dict[str, list[str]]:
    """The records of validations of each run, which have the times of their updates."""
    found = {path.parent.name: path.read_text().splitlines() for path in Path("s x=1,ü").glob("*/log.jsonl")}
    return {name: [line for line in lines if '"valid"' in line] for name, lines in found.items()}


def scores(metric: str) -> list[float]:
    found = [json.loads(path.read_text()) for path in Path("s x=1,ü").glob("*/scores.json")]
    return [scores["best"]["scores"][metric] for scores in found]


def test_values() -> None:
    """Ranges, lists and choices are Hydra's; text is one value, whatever it contains."""
    model = ["optimization.lr=[1e-3],[1,2]", "model=fconv,fconv_tiny", "model.dropout=interval(0,0.5)"]
    text = [
        "run_dir=a,b",
        "checkpoint.finetune_from=range(1,4) ${x} \\'",
        "common.device=cpu",
        "dataset.max_tokens=null",
    ]
    fixed, swept = split([*model, *text, "common.seed=9", "common.seed=range(1,4)"])
    assert [f"{key}={value}" for key, value in fixed.items()] == text
    assert [f"{key}={value}" for key, value in swept.items()] == [*model, "common.seed=range(1,4)"]
    assert split(["common.device=cpu,cuda"])[1] == {"common.device": "cpu,cuda"}
    (example,) = (line for _, line in EXAMPLES["seqgen-train"] if " -m " in line)
    assert [*split(example.split()[2:])[1]] == ["model", "common.seed"]


def test_folders_are_named_by_values() -> None:
    job = Job([], ["b", "a"], Path(), "")
    assert job.name([("a", "1/2"), ("b", "x")]) == "b=x,a=1_2"
    assert Job([], [], Path(), "").name([]) == "job"
    names = [job.name([("a", "ü" * 200 + end), ("b", "x")]) for end in "12"]
    assert len(set(names)) == 2
    assert max(len(name.encode()) for name in names) <= 255


def test_a_sweep_trains_the_product_and_continues(base: list[str]) -> None:
    """A run that fails does not stop the others, and those that have ended are not trained again."""
    blocked = Path("s x=1,ü/common.seed=1,model.dropout=0.1")
    blocked.parent.mkdir()
    blocked.touch()
    given = ["-m", *base, "common.seed=range(1,3)", "model.dropout=choice(0.1)"]
    outcome = command("train", *given)
    assert outcome.code == 2
    assert outcome.err.endswith(f"runs that failed, with the messages above: {blocked.name} (exit code 2)\n")
    assert "Traceback" not in outcome.err
    before = logs()
    assert before.keys() == {"common.seed=2,model.dropout=0.1"}
    blocked.unlink()
    outcome = done("train", *given)
    assert folders() == ["common.seed=1,model.dropout=0.1", "common.seed=2,model.dropout=0.1"]
    assert before.items() < logs().items()
    assert outcome.out == command("show", "s x=1,ü", "sort=loss").out


def test_a_signal_stops_the_sweep(base: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "main", lambda _: sys.exit(143))
    outcome = command("train", "-m", *base, "common.seed=1,2")
    assert (outcome.code, outcome.err.count("run ")) == (143, 1), outcome.err


@pytest.mark.slow
class TestOptuna:
    """The best validation score is the objective."""

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="hydra-optuna-sweeper is not installed")

    def optuna(self, base: list[str], trials: int, *further: str) -> Outcome:
        given = ["model.dropout=interval(0.1,0.9)", "hydra/sweeper=optuna", f"hydra.sweeper.n_trials={trials}"]
        return done("train", "-m", *base, *given, "hydra.sweeper.n_jobs=1", *further)

    @pytest.mark.parametrize(("metric", "best", "better"), [("loss", min, "lower"), ("accuracy", max, "higher")])
    def test_direction(self, base: list[str], metric: str, best: Callable[[list[float]], float], better: str) -> None:
        """Started again with more trials, a study begins with the same values."""
        key = f"checkpoint.best_checkpoint_metric={metric}"
        assert f"best valid {metric}, {better} is better" in self.optuna(base, 1, key).err
        before = logs()
        self.optuna(base, 2, key)
        assert len(logs()) == 2
        assert before.items() < logs().items()
        results = Path("s x=1,ü/optimization_results.yaml").read_text()
        assert f"best_value: {best(scores(metric))}" in results

    def test_a_stored_study_resumes_interrupted_runs(self, base: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        import optuna

        stored = "hydra.sweeper.storage=sqlite:///s.db"
        with monkeypatch.context() as patch:
            patch.setattr(module, "main", lambda _: sys.exit(137))
            killed = command("train", "-m", *base, "model.dropout=interval(0.1,0.9)", "hydra/sweeper=optuna", stored)
            assert killed.code == 137
        self.optuna(base, 2, stored)
        (summary,) = optuna.get_all_study_summaries("sqlite:///s.db")
        trials = optuna.load_study(summary.study_name, "sqlite:///s.db").get_trials()
        states = [trial.state.name for trial in trials]
        assert states == ["FAIL", "FAIL", "COMPLETE", "COMPLETE"]
        assert [trial.params for trial in trials[:2]] == [trial.params for trial in trials[2:]]
        assert sorted(trial.value for trial in trials[2:]) == sorted(scores("loss"))

    def test_a_failure_ends_a_study_unless_it_is_tolerated(self, base: list[str]) -> None:
        study = ["-m", *base, "common.seed=1,2", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=4"]
        Path("s x=1,ü").mkdir()
        Path("s x=1,ü/common.seed=1").touch()
        outcome = command("train", *study)
        assert outcome.code == 2
        assert "the run common.seed=1 failed with exit code 2; with hydra.sweeper.max_failure_rate=1" in outcome.err
        assert command("train", *study, "hydra.sweeper.max_failure_rate=1").code == 0
        assert folders() == ["common.seed=2"]


SLURM = {
    "sbatch": """#!/usr/bin/env python3
import os, re, subprocess, sys
tasks = int(re.search("--array=0-([0-9]+)", open(sys.argv[-1]).read())[1]) + 1
for task in range(tasks):
    job = {"JOB_ID": task, "ARRAY_JOB_ID": 100, "ARRAY_TASK_ID": task, "PROCID": 0, "LOCALID": 0, "NTASKS": 1}
    job |= {"JOB_NUM_NODES": 1, "NODEID": 0}
    environment = os.environ | {f"SLURM_{key}": str(value) for key, value in job.items()}
    subprocess.Popen(["bash", sys.argv[-1]], env=environment, stdout=-3, stderr=-3)
print("Submitted batch job 100")
""",
    "srun": """#!/bin/bash
while [ "${1#-}" != "$1" ]; do case $1 in --output|--error) shift 2;; *) shift;; esac; done
exec "$@"
""",
    "sacct": "#!/bin/bash\nprintf 'JobID|State|NodeList\\n100_0|RUNNING|a\\n100_1|RUNNING|a\\n'\n",
}
"""Programs that do what Slurm's do, on this machine."""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["submitit_slurm", "ray"])
def test_launchers(base: list[str], launcher: str, tmp_path: Path) -> None:
    plugin = f"hydra_{launcher.partition('_')[0]}_launcher"
    pytest.importorskip(f"hydra_plugins.{plugin}", reason=f"{plugin} is not installed")
    for name, text in SLURM.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    given = ["common.seed=1,2", f"hydra/launcher={launcher}"]
    given += ["+hydra.launcher.ray.init.address=local"] * (launcher == "ray")
    line = [sys.executable, "-m", "seqgen.cli.train", "-m", *base, *given]
    shown = subprocess.run(line, env=environment, check=False, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert folders() == ["common.seed=1", "common.seed=2"]
    assert [json.loads(log[-1])["event"] for log in logs().values()] == ["valid", "valid"]
    assert "common.seed=2" in shown.stdout


def in_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    sweep([], ["hydra/launcher=joblib"], tmp_path, "loss")


SWEEP = "train -m run_dir={tmp_path} common.seed=1,2 "

test_refusals = refusals(
    ("train hydra.launcher.n_jobs=2", "hydra.launcher.n_jobs=2 is for sweeps: add -m"),
    ("train -m run_dir={tmp_path} common.seed=1,x", "'common.seed=x' cannot be used", "a whole number"),
    ("train -m run_dir={tmp_path} common.seed=range(1,", "'common.seed=range(1,' cannot be used"),
    *(
        (f"train -m run_dir={{tmp_path}} common.seed=range({wrong})", f"common.seed=range({wrong})", said)
        for wrong, said in (("1,2,0", "a whole number"), ("1,1e99,1", "more than 10000"), ("nan,1,1", "cannot be used"))
    ),
    (SWEEP + "model.dropout=interval(0,0.9)", "BasicSweeper does not support"),
    ("train -m run_dir={tmp_path} common.sede=1,2", "unknown key 'common.sede'", "common.seed"),
    ("train -m run_dir={tmp_path} model=fconv,nothere", "there is no model 'nothere'"),
    (SWEEP + "hydra/launcher=nothere", "Could not find 'hydra/launcher/nothere'", "pip install -c constraints.txt"),
    (SWEEP + "hydra.launcher.nothere=1", "hydra.launcher.nothere"),
    (SWEEP + "hydra.sweep.dir=x", "hydra.sweep.dir: the folder of a sweep is run_dir"),
    (SWEEP + "hydra/sweeper=optuna hydra.sweeper.direction=maximize", "direction=maximize", "lower is better"),
    (in_ranks, "under torchrun"),
)
