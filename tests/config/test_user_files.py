"""``common.user_dir``: several files, the run's record of them, and the message when one is missing."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqgen.cli.keys import every_key
from seqgen.config import CALL, GenerateConfig, GenerationConfig, TrainConfig, keys_tagged, option
from seqgen.config.compose import compose
from seqgen.config.user_files import _USER_FILES, import_modules, import_user_dir, recorded_files, user_modules
from seqgen.config.values import from_dict, text_list, to_dict
from seqgen.extend import ConfigError, load_model, register_options
from seqgen.registry import DECODING_COMPONENTS, GROUPS, LOGITS_PROCESSORS, MODELS
from seqgen.text.translator import Translator
from tests.commands import Outcome, command, done, refused
from tests.text_models import TEXTS, text_model
from tests.training_runs import TINY

OWN = ("seqgen_user_", "same", "a_net", "net_config")
"""How the names of the modules begin that the files of this test become."""

COMPONENTS = Path(__file__).parent.parent / "user_search.py"
MODEL = """
from dataclasses import dataclass
from seqgen.models.transformer import TransformerConfig, TransformerModel
from seqgen.registry import register_model

@dataclass
class OwnConfig(TransformerConfig):
    pass

@register_model("own_net", config=OwnConfig, presets={"own_net_tiny": OwnConfig()})
class OwnModel(TransformerModel):
    pass
"""


def forget() -> None:
    """Unregister the user's components, so that this process is like a new one."""
    for registry in (*GROUPS.values(), *(registry for registry, _ in DECODING_COMPONENTS.values())):
        for name, entry in [*registry._entries.items()]:
            if entry.component.__module__.startswith(OWN):
                del registry._entries[name]
        registry.recorded.clear()
    for name in [name for name in sys.modules if name.startswith(OWN)]:
        del sys.modules[name]
    _USER_FILES.files.clear()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget()
    yield
    forget()


def arguments(run: Path, *user_dirs: Path) -> list[str]:
    keys = [f"run_dir={run}", f"common.user_dir={text_list([str(path) for path in user_dirs])}"]
    keys += [*(item.replace("transformer_tiny", "own_net") for item in TINY), "common.threads=1", "common.device=cpu"]
    keys += ["generation.search=pruning", "search.delta=2.5", "dataset.validate_decode=2", "generation.max_len_b=5"]
    return [*keys, "optimization.max_update=2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run whose model and search are the user's own, and the folder of the file that has the model."""
    forget()
    folder = tmp_path_factory.mktemp("own")
    (folder / "nets").mkdir()
    (folder / "nets" / "net.py").write_text(MODEL)
    done("train", *arguments(folder / "run", folder / "nets", COMPONENTS))
    return folder / "run", folder / "nets"


def common(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())["common"]
    return found


def decode(run: Path, *more: str) -> Outcome:
    return command("generate", f"path={run}", "input=-", "common.device=cpu", *more, stdin=b"12\n7\n")


def test_a_run_records_the_files_as_they_were_given(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """Also when it is resumed."""
    run, nets = Path(shutil.copytree(trained[0], tmp_path / "run")), trained[1]
    done("train", *arguments(run, nets, COMPONENTS), "optimization.max_update=3")
    assert common(run) == common(trained[0])
    assert common(run)["user_dir"] == [str(nets), str(COMPONENTS)]
    assert common(run)["user_files"] == {"model.own_net": str(nets / "net.py"), "search.pruning": str(COMPONENTS)}


def test_a_run_names_the_file_of_a_users_key(tmp_path: Path) -> None:
    (tmp_path / "a_net.py").write_text(
        "from dataclasses import dataclass\nfrom seqgen.extend import option, register_options\n"
        '@register_options("generation")\n@dataclass\nclass OwnOptions:\n'
        '    own_reward: float = option(0.0, "a reward")\n'
    )
    import_user_dir(tmp_path / "a_net.py")
    files = recorded_files(TrainConfig(), [str(tmp_path)])
    assert files == {"generation.own_reward": str(tmp_path / "a_net.py")}
    plain = {"common": {"user_files": files}, "generation": {"own_rewards": 1.0}}
    with pytest.raises(ConfigError, match=r"unknown key 'generation.own_rewards'"):
        from_dict(TrainConfig, plain, "config.yaml")
    plain["generation"] = {"own_reward": 1.0}
    code = "from seqgen.config import TrainConfig; from seqgen.config.values import from_dict; "
    code += f"from_dict(TrainConfig, {plain!r}, 'config.yaml')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"the key generation.own_reward was declared in {tmp_path}/a_net.py when the run was made" in ended.stderr


def test_decoding_imports_what_is_given_and_not_what_is_recorded(trained: tuple[Path, Path]) -> None:
    run, nets = trained
    said = f"there is no model 'own_net'; it was registered in {nets / 'net.py'} when the run was made; to run"
    refused(decode(run), said, f"common.user_dir={nets / 'net.py'}, or import it in Python")
    with pytest.raises(ConfigError, match="'own_net'; it was registered in"):
        load_model(run)
    half = decode(run, f"common.user_dir={nets}")
    refused(half, f"there is no search strategy 'pruning'; it was registered in {COMPONENTS} when the run was made")
    whole = decode(run, f"common.user_dir=[{nets},{COMPONENTS}]")
    assert whole.code == 0, whole.err
    assert whole.out.count("\n") == 2
    assert type(load_model(run).model).__name__ == "OwnModel"


def test_what_is_recorded_may_be_gone(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """A run whose files were moved, or whose record was edited or deleted, loads with the files that the user gives.

    The criterion's file may be lost; to continue the training, it is needed.
    """
    run = Path(shutil.copytree(trained[0], tmp_path / "run"))
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["criterion"] = {"_name": "own_loss", "weight": 3}
    values["common"]["user_files"]["criterion.own_loss"] = "loss.py"
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    assert decode(run, f"common.user_dir=[{trained[1]},{COMPONENTS}]").code == 0
    resumed = command("train", *arguments(run, trained[1], COMPONENTS))
    refused(resumed, "there is no criterion 'own_loss'; it was registered in loss.py")
    forget()
    values["common"]["user_dir"] = ["nowhere/net.py"]
    del values["common"]["user_files"]
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    refused(decode(run), "there is no model 'own_net'", "common.user_dir=FILE")
    assert decode(run, f"common.user_dir=[{trained[1]},{COMPONENTS}]").code == 0


def test_files_of_one_name_in_two_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.py").write_text(f"NAME = {name!r}\n")
        import_user_dir(tmp_path / name)
        import_user_dir(tmp_path / name / "same.py")  # once is enough
        (tmp_path / name / "other.py").write_text(f"NAME = {name!r}\n")
    import_user_dir(tmp_path / "one" / "other.py", tmp_path / "two" / "other.py")  # at once
    for name in ("same", "other"):
        modules = [module for key, module in sys.modules.items() if key.startswith(f"seqgen_user_{name}")]
        assert [module.NAME for module in modules] == ["one", "two"]
    (tmp_path / "reader.py").write_text("from same import NAME\n")
    import_user_dir(tmp_path / "reader.py")
    assert sys.modules["seqgen_user_reader"].NAME == "two", "of one name, the last file is meant"


def files_that_import_one_another(folder: Path) -> list[Path]:
    """The model of ``MODEL`` in two files, of which the first in the order of the alphabet imports the second."""
    folder.mkdir()
    head, body = MODEL.split("@dataclass")
    (folder / "a_net.py").write_text(f"{head}from net_config import OwnConfig\n" + body[body.index("@register") - 1 :])
    (folder / "net_config.py").write_text(f"{head}import a_net\n@dataclass{body[: body.index('@register')]}")
    return [folder / "a_net.py", folder / "net_config.py"]


@pytest.mark.parametrize("given", ["folder", "files", "package", "on the path"])
def test_files_import_one_another(tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one module, whatever imports it, also in another process; files that were not given are not found."""
    files = files_that_import_one_another(tmp_path / "net")
    with pytest.raises(ConfigError, match=r"a_net\.py fails to import: ModuleNotFoundError: .*'net_config'"):
        import_user_dir(files[0])
    if given == "package":
        (tmp_path / "net" / "__init__.py").write_text("from . import a_net\n")
        files[0].write_text(files[0].read_text().replace("from net_config", "from .net_config"))
        files[1].write_text(files[1].read_text().replace("import a_net\n", ""))
    if given == "on the path":  # as in ``python -m seqgen.cli.train`` and ``torchrun -m``, started in the folder
        monkeypatch.syspath_prepend(tmp_path / "net")
    import_user_dir(*(files if given == "files" else [tmp_path / "net"]))
    recorded = recorded_files(compose(TrainConfig, ["model=own_net"]), [str(tmp_path / "net")])
    assert recorded == {"model.own_net": str(tmp_path / "net" / ("" if given == "package" else "a_net.py"))}
    modules = user_modules()
    registered = MODELS.entry("own_net").component.__module__
    assert registered == ("seqgen_user_net.a_net" if given == "package" else "seqgen_user_a_net")
    forget()
    import_modules(modules)
    assert MODELS.entry("own_net").component.__module__ == registered


EXAMPLES = Path(__file__).parent.parent.parent / "examples"
GALLERY = [
    *(file for folder in ("", "extending", "papers") for file in sorted((EXAMPLES / folder).glob("[a-z]*.py"))),
    *sorted(file.parent for file in (EXAMPLES / "papers").glob("*/__init__.py")),
]
"""Each file or folder that a user can copy."""


def test_examples_import_nothing_of_the_checkout() -> None:
    files = [file for path in GALLERY for file in ([path] if path.is_file() else path.glob("*.py"))]
    imports = [line for file in files for line in re.findall(r"^\s*(?:from|import) .*", file.read_text(), re.MULTILINE)]
    assert len(files) > 45
    assert [line for line in imports if re.match(r"\s*(from|import) (examples|tests|benchmarks)\b", line)] == []


@pytest.mark.slow
def test_examples_work_alone_outside_the_checkout(tmp_path: Path) -> None:
    """Each is copied into a folder of its own; ``-P`` keeps the working directory off Python's path."""
    for path in GALLERY:
        (tmp_path / path.stem).mkdir()
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.stem / path.name)
    code = "import sys\nfrom pathlib import Path\nfrom seqgen.config.user_files import _USER_FILES, import_user_dir\n"
    code += "for path in sys.argv[1:]:\n    _USER_FILES.files.clear()\n    import_user_dir(Path(path))\n"
    code += "assert 'examples' not in sys.modules"
    program = [sys.executable, "-P", "-c", code, *(str(tmp_path / path.stem / path.name) for path in GALLERY)]
    ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


# --- keys that a user's file adds


FILE = """
from dataclasses import dataclass
from seqgen.extend import LogitsProcessor, option, register_logits_processor, register_options

@register_options("generation")
@dataclass
class PaceOptions:
    pace: float = option(0.0, "reward of each word, in nats", minimum=0, other_names=("word_bonus",))
    paced: list[str] = option([], "words that have no reward")

@register_logits_processor("pace")
class Pace(LogitsProcessor):
    def __init__(self, without, reward):
        self.without, self.reward = without, reward

    @classmethod
    def build(cls, cfg, resources):
        settings = resources.settings
        return cls([resources.dictionary.eos(), *resources.tokens(settings.paced)], settings.pace)

    def __call__(self, lprobs, context):
        rewards = lprobs.new_full((lprobs.size(1),), self.reward)
        rewards[self.without] = 0
        return lprobs + rewards
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A user's file; its components are forgotten afterwards."""
    (tmp_path / "timed.py").write_text(FILE)
    yield tmp_path / "timed.py"
    LOGITS_PROCESSORS._entries.pop("pace", None)
    for name in [name for name, known in user_modules() if known == f"{tmp_path}/timed.py"]:
        del sys.modules[name], _USER_FILES.files[name]


def test_keys_of_a_users_file(file: Path) -> None:
    before, own = {key.name for key in every_key(GenerateConfig)}, f"common.user_dir={file}"
    shown = command("generate", own, "--help", "generation.pace")
    assert "reward of each word, in nats" in shown.out, shown
    added = {"generation.pace", "generation.paced"}
    assert {key.name for key in every_key(GenerateConfig)} - added == before
    assert added <= {key.name for key in every_key(TrainConfig)}
    refused(command("generate", own, "path=a", "generation.pace=-1"), "generation.pace=-1.0 is below its minimum, 0")
    refused(command("generate", own, "path=a", "generation.word_bonus=1"), "did you mean 'generation.pace'?")
    cfg = GenerationConfig(beam=4, pace=0.5)  # type: ignore[call-arg]
    assert from_dict(GenerationConfig, to_dict(cfg), "values") == cfg != GenerationConfig(beam=4)
    assert "pace=0.5" in repr(cfg)
    assert GenerationConfig().paced == []  # type: ignore[attr-defined]
    assert "pace" in keys_tagged(CALL)


def test_a_component_reads_the_keys(file: Path) -> None:
    assert command("generate", f"common.user_dir={file}", "--help").code == 0
    fixed: dict[str, Any] = {"processors": ["pace"], "max_len_b": 8}
    plain, paced = (
        [line.hypotheses[0].text.split() for line in Translator(text_model(), **fixed, **own).translate(TEXTS)]
        for own in ({"paced": ["w10"]}, {"paced": ["w10"], "pace": 90.0})
    )
    assert "w10" in chain(*plain)
    assert "w10" not in chain(*paced)
    with pytest.raises(ConfigError, match=r"pace=-2\.0 is below its minimum"):
        Translator(text_model(), pace=-2.0)


def test_a_key_changes_the_setup(file: Path, tmp_path: Path) -> None:
    """The example timed.py."""
    code = (Path(__file__).parents[2] / "examples" / "extending" / "timed.py").read_text(encoding="utf-8")
    plain = Translator(text_model()).translate(TEXTS)
    file.write_text(code)
    import_user_dir(file)
    found = Translator(text_model(), timed=f"{tmp_path}/seconds").translate(TEXTS)
    assert [line.text for line in found] == [line.text for line in plain]
    phases = [line.split()[0] for line in (tmp_path / "seconds").read_text().splitlines()]
    assert {*phases} == {"begin", "step"}
    assert phases.count("step") > phases.count("begin")


def test_what_cannot_be_registered() -> None:
    @dataclass
    class Taken:
        beam: int = option(1, "a key that exists")

    @dataclass
    class Bare:
        pace: int = 1

    for options, message in (
        (Taken, "Taken .*: the key generation.beam exists; rename yours"),
        (Bare, "Bare .* must be a dataclass whose fields are declared by option"),
        (int, "int .* must be a dataclass"),
    ):
        with pytest.raises(ConfigError, match=message):
            register_options("generation")(options)
    with pytest.raises(ConfigError, match="only the group 'generation'"):
        register_options("common")
