"""Critics of examples/papers: their scores, the heads that they read, and their commands."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from examples.papers.critics.error_interventions import Interventions
from examples.papers.critics.fit import FitConfig, fit, fit_rewards, read_features, right_tokens
from examples.papers.critics.quality_aware import QualityAware, QualityOfText
from examples.papers.critics.reward_augmented import RewardAugmented, RewardConfig
from examples.papers.critics.target_language import TargetLanguage
from examples.papers.critics.text_member import TextMember, member_of
from seqgen import load_model
from seqgen.addons.partial_texts import PartialTexts
from seqgen.decoding.building import Resources
from seqgen.extend import OwnMember
from seqgen.text.translator import Translator
from tests.commands import command
from tests.examples.test_commands import PAPERS, ended, generate, lines_of, run  # noqa: F401  # a fixture
from tests.exhaustive import EOS, PAD, ranked_outputs
from tests.scripted_model import dictionary
from tests.text_models import TEXTS, Pieces, next_scores, task_of, text_model

pytestmark = pytest.mark.slow

BETA = 1.5
WORDS = dictionary(2)
SOURCE = "w1 w0 w1"


def features_after(loaded: object, text: str, tokens: list[int]) -> Tensor:
    """The features after each of some tokens, ``(T, C)``, by teacher forcing."""
    model, task = loaded.model, loaded.task  # type: ignore[attr-defined]
    source = task.encode_source(text).unsqueeze(0)
    encoded = model.encoder(source, torch.tensor([source.size(1)]))
    inputs = torch.tensor([[model.start_token(task.target_dictionary.eos()), *tokens]])
    features: Tensor = model.decoder.extract_features(inputs, encoded)[0][0]
    return features


def text_of(*tokens: int) -> str:
    return " ".join(WORDS.symbol(token) for token in tokens if token not in (EOS, PAD, 0))


def interventions(lprobs: Tensor, logits: Tensor) -> Tensor:
    """The equation of the paper, token by token."""

    def entropy(values: list[float]) -> float:
        return -sum(p * math.log(p) for p in values if p > 0) / math.log(len(values))

    certain, values = 1 + 2.0 * entropy(lprobs.softmax(0).tolist()), list[Tensor]()
    for token, right in enumerate(logits.sigmoid().tolist()):
        lost = BETA * certain / (1 + 2.0 * entropy([right, 1 - right])) * (1 - right)
        values.append(lprobs[token] - lost * (token != EOS))
    return torch.stack(values)


def longer(source: str, texts: Sequence[str]) -> list[float]:
    return [len(text) / len(source) + (text[-1:] == "1") for text in texts]


CRITICS: dict[str, tuple[Callable[..., Any], Callable[[Tensor, Tensor], Tensor]]] = {
    "reward": (lambda *of, k: RewardAugmented(*of, BETA, k), lambda lprobs, found: lprobs + BETA * found.sigmoid()),
    "quality": (lambda *of, k: QualityAware(*of, k, BETA), lambda lprobs, found: lprobs + BETA * F.logsigmoid(found)),
    "interventions": (lambda *of, k: Interventions(*of, BETA, 2.0, k), interventions),
    "quality_of_text": (lambda texts, k: QualityOfText(texts, longer, BETA, k), lambda lprobs, q: lprobs + BETA * q),
    "language": (lambda texts, k: TargetLanguage(texts, "de", BETA, k), lambda lprobs, found: lprobs + BETA * found),
}
"""Processors, and their formulas of log-probabilities and what a head or a function finds."""
OF_HEADS = [*CRITICS][:3]


@torch.no_grad()
@pytest.mark.parametrize(
    ("critic", "name", "letters"),
    [
        *((critic, "transformer_tiny", letters) for critic in OF_HEADS for letters in (False, True)),
        *(("reward", "t5_tiny", False), ("reward", "fconv_tiny", False), ("reward", "llama_tiny", True)),
        *(("quality_of_text", "transformer_tiny", False), ("language", "transformer_tiny", False)),
    ],
)
def test_the_best_outputs_are_those_of_all_outputs(critic: str, name: str, letters: bool) -> None:
    """With a rater that reads letters, which are another vocabulary, or words."""
    loaded, size, (make, formula) = text_model("transformer_tiny", 0, task_of(words=WORDS)), len(WORDS), CRITICS[critic]
    resources = Resources(WORDS, decode=loaded.task.target_tokenizer.decode, source_dictionary=WORDS)
    rater = text_model(name, 1, task_of(Pieces([*"w01 ", "w1"]) if letters else None, WORDS))
    reading, lprobs = member_of(rater, resources), next_scores(loaded, SOURCE)
    assert type(reading) is (TextMember if letters else OwnMember)
    head = nn.Linear(features_after(rater, "w1", [4]).size(1), 1).double()
    processor = make(*((reading, head) if critic in OF_HEADS else (PartialTexts.of(resources),)), k=size)

    def found_after(history: tuple[int, ...], token: int) -> float:
        if critic == "quality_of_text":
            return longer(SOURCE, [text_of(*history, token)])[0]
        if critic == "language":
            before, after = (processor.probability(text_of(*ids)) for ids in (history, (*history, token)))
            return math.log(after / before)
        ids = rater.task.encode_target(text_of(*history, token)).tolist()[: None if token == EOS else -1]
        return float(head(features_after(rater, SOURCE, ids if letters else [*history, token])[-1]))

    def scores(given: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        possible = lprobs(history).index_fill(0, torch.tensor([PAD, EOS][: 2 - bool(history)]), -math.inf)
        return formula(possible, torch.tensor([found_after(history, token) for token in range(size)]).double())

    keys = {"beam": 60, "nbest": 6, "max_len_b": 4, "min_len": 1, "processors": [processor]}
    (line,) = Translator(loaded, **keys).translate([SOURCE])
    found = [(tuple(one.tokens.tolist()), one.score) for one in line.hypotheses if len(one.tokens) <= 4]
    wanted = ranked_outputs(scores, (), size, 3, len(found))
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
    assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-6)


def test_the_head_has_the_smallest_cumulative_error() -> None:
    loaded = text_model()
    pairs = list(zip(TEXTS, [*TEXTS[1:], "w9"], strict=True))
    with torch.no_grad():
        features, numbers, steps = read_features(loaded, pairs, batch_size=2)
        for number, (source, target) in enumerate(pairs):
            tokens = loaded.task.encode_target(target).tolist()
            of_line = features_after(loaded, source, tokens)[1:]
            torch.testing.assert_close(features[numbers == number], of_line)
            assert steps[numbers == number].tolist() == list(range(1, len(tokens) + 1))
    rewards = torch.tensor([0.1, 0.9, 0.4, 0.8, 0.2])
    head = fit_rewards(features, numbers, steps, rewards).requires_grad_(True)

    def error(one: nn.Linear) -> Tensor:
        found = zip(numbers.tolist(), steps.tolist(), one(features).squeeze(-1).sigmoid(), strict=True)
        errors = [t * (reward - rewards[n]) ** 2 / steps[numbers == n].sum() for n, t, reward in found]
        return torch.stack(errors).sum() / len(rewards)

    error(head).backward()
    assert all(parameter.grad.abs().max() < 1e-3 for parameter in head.parameters())  # type: ignore[union-attr]
    with torch.no_grad():
        assert error(head) < 0.02 < error(nn.Linear(features.size(1), 1).double())


def test_labels_of_tokens() -> None:
    """4 is right, 9 is wrong, a 6 is missing before 7, and 8 is one too many."""
    assert right_tokens([4, 9, 5, 7, 8, 2], [4, 3, 5, 6, 7, 2]) == [1, 0, 1, 0, 0, 1]


def test_the_commands(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    data, given, head = run.parent / "DATA", tmp_path / "given", tmp_path / "head.safetensors"
    files = [f"source={data}/test.en", f"target={data}/test.de", f"head={head}", f"path={run}"]
    assert ended(FitConfig, fit, *files) == 2
    assert "either rewards=FILE or references=FILE" in capsys.readouterr().err
    given.write_text("0.5\nmuch\n" + "0.5\n" * (len(lines_of(run, "de")) - 2))
    assert ended(FitConfig, fit, *files, f"rewards={given}") == 2
    assert "must have a number in each line" in capsys.readouterr().err
    for word, reason in (("7", "between 0 and 1, not 7"), ("nan", "not nan"), ("1", "longer than the 1024 positions")):
        lines = len(lines_of(run, "de"))
        given.write_text(f"{word}\n" * lines)
        (tmp_path / "long").write_text("w " * 2000 + "\n" * lines)
        assert ended(FitConfig, fit, *files, f"rewards={given}", *[f"source={tmp_path}/long"][: word == "1"]) == 2
        assert reason in capsys.readouterr().err

    def decode(name: str, *keys: str) -> str:
        chosen = [f"generation.processors=[{name}]", *(f"processor.{name}.{key}" for key in keys)]
        return generate(run, "critics", *chosen, "generation.max_len_b=12").out

    given.write_text("".join(f"{1 / len(line.split()):.3f}\n" for line in lines_of(run, "de")))
    assert ended(FitConfig, fit, *files, f"rewards={given}") == 0
    assert len(decode("reward", f"head={head}", "beta=40")) < len(decode("reward", f"head={head}", "beta=0"))
    models = [load_model(run)]
    config = RewardConfig(head=str(head), model=f"{data}/../{run.name}")
    task = models[0].task
    resources = Resources(task.target_dictionary, source_dictionary=task.source_dictionary, models=models)
    built = RewardAugmented.build(config, resources)
    assert built.parts[0].spec.model is models[0].model  # its weights are in memory once
    assert load_model(run, dtype="bfloat16", among=models).model is not models[0].model
    (usual, count), *_ = Counter(decode("language", "code=de", "weight=0").split()).most_common()
    wrong = [line.replace(" ", f" {usual} ") for line in lines_of(run, "de")]
    given.write_text("".join(f"{line}\n" for line in wrong))
    files[1:2] = f"target={given}", f"references={data}/test.de"
    assert ended(FitConfig, fit, *files) == 0
    for name in ("interventions", "quality"):
        factor = "alpha=40" if name == "interventions" else "weight=40"
        assert decode(name, f"head={head}", factor).split().count(usual) < count / 2
    own = f"common.user_dir={PAPERS}/critics"
    # the model that reads text is in float32
    of_heads = [f"processor={name} processor.{name}.head={head} processor.{name}.model={run}" for name in OF_HEADS]
    for keys in (*of_heads, "processor=quality_of_text", "processor=language processor.language.code=de"):
        outcome = command("check", own, *keys.split(), "tolerance=1e-6", "common.threads=1")
        count = 10 if keys in of_heads else 11  # with joining
        assert f"{count} of {count} invariants hold" in outcome.out, outcome.out + outcome.err
    save_file({"weight": torch.randn(1, 16), "bias": torch.zeros(1)}, head)  # for the model of seqgen-check
    keys = [own, "processor=reward", f"processor.reward.head={head}", "common.threads=1"]
    assert "11 of 11 invariants hold" in command("check", *keys).out
