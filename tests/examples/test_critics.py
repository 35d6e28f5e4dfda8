"""Reward-augmented decoding (examples/papers): its scores, its head and its commands."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from examples.papers.reward_augmented import FitConfig, RewardAugmented, fit, fit_head, read_features
from seqgen.extend import OwnMember
from seqgen.text.translator import Translator
from tests.commands import command
from tests.examples.test_commands import PAPERS, ended, generate, lines_of, run  # noqa: F401  # a fixture
from tests.exhaustive import ranked_outputs
from tests.scripted_model import dictionary
from tests.text_models import TEXTS, next_scores, task_of, text_model

pytestmark = pytest.mark.slow

BETA = 1.5


def features_after(loaded: object, text: str, tokens: list[int]) -> Tensor:
    """The features after each of some tokens, ``(T, C)``, by teacher forcing."""
    model, task = loaded.model, loaded.task  # type: ignore[attr-defined]
    source = task.encode_source(text).unsqueeze(0)
    encoded = model.encoder(source, torch.tensor([source.size(1)]))
    inputs = torch.tensor([[model.start_token(task.target_dictionary.eos()), *tokens]])
    features: Tensor = model.decoder.extract_features(inputs, encoded)[0][0, 1:]
    return features


@torch.no_grad()
@pytest.mark.parametrize("name", ["transformer_tiny", "t5_tiny", "fconv_tiny"])
def test_the_best_outputs_are_those_of_all_outputs(name: str) -> None:
    loaded, judge = (text_model(name, seed, task_of(words=dictionary(2))) for seed in (0, 1))
    size = len(loaded.task.target_dictionary)
    head = nn.Linear(features_after(judge, "w1", [4]).size(1), 1).double()
    source = "w1 w0 w1"
    lprobs = next_scores(loaded, source)

    def scores(given: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        read = [features_after(judge, source, [*history, token])[-1] for token in range(size)]
        return lprobs(history) + BETA * head(torch.stack(read)).squeeze(-1).sigmoid()

    wanted = ranked_outputs(scores, (), size, 3, 6)
    processor = RewardAugmented(OwnMember(judge.model), head, BETA, k=size)
    keys = {"beam": 60, "nbest": 6, "max_len_b": 4, "min_len": 1, "processors": [processor]}
    (line,) = Translator(loaded, **keys).translate([source])
    found = [(tuple(one.tokens.tolist()), one.score) for one in line.hypotheses if len(one.tokens) <= 4]
    longest = [pair for pair in wanted if len(pair[0]) <= 4][: len(found)]
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in longest]
    assert [score for _, score in found] == pytest.approx([score for _, score in longest], abs=1e-6)


def test_the_head_has_the_smallest_cumulative_error() -> None:
    loaded = text_model()
    pairs = list(zip(TEXTS, [*TEXTS[1:], "w9"], strict=True))
    with torch.no_grad():
        features, numbers, steps = read_features(loaded, pairs, batch_size=2)
        for number, (source, target) in enumerate(pairs):
            tokens = loaded.task.encode_target(target).tolist()
            of_line = features_after(loaded, source, tokens)
            torch.testing.assert_close(features[numbers == number], of_line)
            assert steps[numbers == number].tolist() == list(range(1, len(tokens) + 1))
    rewards = torch.tensor([0.1, 0.9, 0.4, 0.8, 0.2])
    head = fit_head(features, numbers, steps, rewards).requires_grad_(True)

    def error(one: nn.Linear) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for number, reward in enumerate(rewards):
            own = one(features[numbers == number]).squeeze(-1).sigmoid()
            total = total + sum(t * (r - reward) ** 2 for t, r in enumerate(own, 1)) / (len(own) * (len(own) + 1) / 2)
        return total / len(rewards)

    error(head).backward()
    assert all(parameter.grad.abs().max() < 1e-3 for parameter in head.parameters())  # type: ignore[union-attr]
    with torch.no_grad():
        assert error(head) < 0.02 < error(nn.Linear(features.size(1), 1).double())


def test_the_commands(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    data, rewards, head = run.parent / "DATA", tmp_path / "rewards", tmp_path / "head.safetensors"
    files = [f"source={data}/test.en", f"target={data}/test.de", f"rewards={rewards}", f"head={head}", f"path={run}"]
    rewards.write_text("0.5\nmuch\n" + "0.5\n" * (len(lines_of(run, "de")) - 2))
    assert ended(FitConfig, fit, *files) == 2
    assert "must have a number in each line" in capsys.readouterr().err
    rewards.write_text("".join(f"{1 / len(line.split()):.3f}\n" for line in lines_of(run, "de")))
    assert ended(FitConfig, fit, *files) == 0
    keys = ["generation.processors=[reward]", f"processor.reward.head={head}", "generation.max_len_b=12"]
    plain, short = (
        generate(run, "reward_augmented.py", *keys, f"processor.reward.beta={beta}").out.split("\n") for beta in (0, 40)
    )
    assert sum(map(len, short)) < sum(map(len, plain))
    save_file({"weight": torch.randn(1, 16), "bias": torch.zeros(1)}, head)  # for the model of seqgen-check
    keys = [f"common.user_dir={PAPERS}/reward_augmented.py", "processor=reward", f"processor.reward.head={head}"]
    assert "10 of 10 invariants hold" in command("check", *keys, "common.threads=1").out
