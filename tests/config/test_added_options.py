"""Keys that a user's file adds to the ``generation`` group."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from seqgen.cli.keys import every_key
from seqgen.config import GenerateConfig, GenerationConfig, TrainConfig, option
from seqgen.config.added_options import register_options
from seqgen.config.generation import keys_tagged
from seqgen.config.options import CALL
from seqgen.config.user_files import _USER_FILES, import_user_dir, user_modules
from seqgen.config.values import from_dict, to_dict
from seqgen.core.errors import ConfigError
from seqgen.registry import LOGITS_PROCESSORS
from seqgen.text.translator import Translator
from tests.commands import command, refused
from tests.text_models import TEXTS, text_model

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
