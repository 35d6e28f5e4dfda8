"""The examples of docs/extending.md: each runs by command and from Python, and has the documented effect."""

import copy
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy
import pytest
import torch
from torch import Tensor

import seqgen.config
import seqgen.extend
from examples.extending import cache
from examples.extending.combination import PowerMean
from examples.extending.command import UnknownWordsConfig, main
from examples.extending.criterion import FocalConfig, FocalCriterion
from examples.extending.logits_processor import WordReward
from examples.extending.member import decode
from examples.extending.reranker import LengthRatio
from examples.extending.search_strategy import ThresholdSearch
from examples.extending.stopping_rule import LoopRule
from examples.extending.tokenizer import CAPITAL, CasedWordTokenizer
from examples.extending.utility import WordF1
from examples.papers.dynamic_beams import ThresholdPruning
from seqgen.extend import DecoderOut, Dictionary, LogitsProcessor, StepContext, Translation, load_model, run
from seqgen.text.line_stages import LINE_STAGES
from seqgen.text.reranking import UtilityLine, expected_utilities
from seqgen.text.translator import Translator
from seqgen.training.criteria import CrossEntropyConfig, CrossEntropyCriterion
from tests import reference
from tests.commands import SMALL_FCONV, corpus, done, training_arguments
from tests.model_zoo import VOCAB, TinyTask, build
from tests.scripted_model import ScriptedModel, batch_of, random_rule
from tests.text_models import TEXTS, text_model

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "extending"
SETTINGS: dict[str, Any] = {"beam": 4, "nbest": 4, "max_len_b": 10}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs ``a`` and ``b``, of a few updates each, and the file ``input``."""
    folder = tmp_path_factory.mktemp("extending")
    corpus(folder / "DATA")
    for name in ("a", "b"):
        arguments = [*training_arguments(folder / "DATA", folder / name), f"common.seed={len(name) + ord(name)}"]
        arguments.append("generation.max_len_b=12")  # they would often write 200 tokens
        done("train", *arguments, *SMALL_FCONV, "optimization.max_update=60", "optimization.lr=[0.05]")
    lines = (folder / "DATA" / "test.en").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "input").write_text("".join(lines[:6]), encoding="utf-8")
    return folder


def test_the_critic_of_the_page_reads_another_model() -> None:
    page = (EXAMPLES.parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^class Agreeing.*?(?=^```)", page, re.M | re.S)
    names = {name: getattr(seqgen.extend, name) for name in ("Critic", "OwnMember")}
    exec(block, names)
    models = [text_model(seed=seed) for seed in (0, 1)]
    critic = names["Agreeing"].build(None, SimpleNamespace(models=models))
    for line in Translator(models[0], **SETTINGS, processors=[critic]).translate(TEXTS):
        for one in line.hypotheses:
            own, other = (next(iter(Translator(model).score([line.source], [one.text]))) for model in models)
            if own.tokens.tolist() == one.tokens.tolist():  # not cut off at the maximum length
                wanted = own.positional_scores + 0.5 * other.positional_scores
                torch.testing.assert_close(one.positional_scores, wanted, atol=1e-5, rtol=0)


def by_command(runs: Path, example: str, *keys: str, path: str = "a") -> list[dict[str, Any]]:
    """The JSON lines of ``seqgen-generate`` with an example as ``common.user_dir``."""
    files = [f"common.user_dir={EXAMPLES / example}.py", f"path=[{','.join(str(runs / name) for name in path)}]"]
    base = (f"input={runs / 'input'}", "format=json", "common.threads=1", "generation.max_len_b=12")
    outcome = done("generate", *files, *base, *keys)
    return [json.loads(line) for line in outcome.out.splitlines()]


def by_object(runs: Path, path: str = "a", **settings: Any) -> list[Translation]:
    """The translations of ``Translator`` for the same input."""
    lines = (runs / "input").read_text(encoding="utf-8").splitlines()
    return Translator([str(runs / name) for name in path], max_len_b=12).translate(lines, **settings)


def outputs(found: list[dict[str, Any]]) -> list[list[tuple[str, float]]]:
    return [[(item["text"], round(item["score"], 3)) for item in line["hypotheses"]] for line in found]


def shown(found: list[Translation]) -> list[list[tuple[str, float]]]:
    return [[(item.text, round(item.score, 3)) for item in line.hypotheses] for line in found]


def tokens(found: list[Translation]) -> list[list[list[int]]]:
    return [[item.tokens.tolist() for item in line.hypotheses] for line in found]


class Counted(LogitsProcessor):
    """The frequency penalty without state: it counts all tokens at every step."""

    def __init__(self, penalty: float):
        self.penalty = penalty

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        for row, generated in enumerate(context.tokens.tolist()):
            for token, times in Counter(generated).items():
                lprobs[row, token] -= self.penalty * times
        return lprobs


KEYS: dict[str, tuple[str, str, Any]] = {
    "search_strategy": ("search=threshold", "search.delta=0.05", ThresholdSearch(0.05)),
    "logits_processor": ("processors=[word_reward]", "processor.word_reward.reward=2.0", [WordReward(2, 2.0)]),
    "stateful_processor": ("processors=[frequency_penalty]", "processor.frequency_penalty.penalty=3", [Counted(3.0)]),
    "combination": ("combination=power_mean", "combination.power=-4.0", PowerMean(-4.0)),
    "stopping_rule": ("stopping_rules=[loop]", "stopping.loop.times=2", [LoopRule(1, 2)]),
    "reranker": ("rerank=length_ratio", "reranker.weight=9.0", LengthRatio(weight=9.0)),
}


@pytest.mark.parametrize("example", KEYS)
def test_the_command_does_what_the_object_does(example: str, runs: Path) -> None:
    (choice, key, component), path = KEYS[example], "ab" if example == "combination" else "a"
    beams = ("generation.beam=5", "generation.nbest=3")
    found = outputs(by_command(runs, example, f"generation.{choice}", key, *beams, path=path))
    assert found == shown(by_object(runs, path, beam=5, nbest=3, **{choice.partition("=")[0]: component}))
    assert found != shown(by_object(runs, path, beam=5, nbest=3))


def test_search_strategy_and_logits_processor() -> None:
    """The former is the first rule of examples/papers/dynamic_beams.py."""
    translator = Translator(text_model(), normalize_scores=False, **SETTINGS)
    one, other = (translator.translate(TEXTS, search=search(0.7)) for search in (ThresholdSearch, ThresholdPruning))
    assert shown(one) == shown(other) != shown(translator.translate(TEXTS))
    for line in translator.translate(TEXTS, processors=[WordReward(2, 0.3)], return_scores=True):
        for item in line.hypotheses:
            assert item.score - item.model_score == pytest.approx(0.3 * (len(item.tokens) - 1))


def test_combination() -> None:
    members = [text_model(seed=seed) for seed in (0, 1, 2)]
    translator = Translator(members, **SETTINGS)
    assert shown(translator.translate(TEXTS, combination=PowerMean(1.0))) == shown(translator.translate(TEXTS))
    for line in translator.translate(TEXTS, combination=PowerMean(-4.0), return_scores=True):
        for item in line.hypotheses:
            wanted = (-4.0 * torch.stack(list(item.member_scores))).exp().mean(0).log() / -4.0
            torch.testing.assert_close(item.positional_scores, wanted, atol=1e-8, rtol=0)


def test_member() -> None:
    """The score is that with the whole source, plus the (negative) weight times that with the words hidden."""
    loaded = text_model()
    weight, text, words = -0.4, "w1 w5 w8 w5", ["w5"]
    found = decode(loaded, text, words, weight, beam=3)
    unk = loaded.task.source_dictionary.symbol(3)
    references = [loaded.task.decode(hypothesis.tokens) for hypothesis in found]
    translator = Translator(loaded)
    seen = translator.score([text] * len(found), references)
    blind = translator.score([f"w1 {unk} w8 {unk}"] * len(found), references)
    for hypothesis, one, other in zip(found, seen, blind, strict=True):
        wanted = one.positional_scores + weight * other.positional_scores
        torch.testing.assert_close(hypothesis.positional_scores, wanted, atol=1e-8, rtol=0)


def test_stopping_rule() -> None:
    translator = Translator(text_model(), beam=1, max_len_b=20, unkpen=99.0)
    plain = [line[0] for line in tokens(translator.translate(TEXTS))]
    ended = [line[0] for line in tokens(translator.translate(TEXTS, stopping_rules=[LoopRule(1, 2)]))]
    wanted = []
    for generated in plain:
        loops = [end + 1 for end in range(1, len(generated)) if generated[end] == generated[end - 1]]
        wanted.append(generated[: min(loops, default=len(generated))])
    assert ended == wanted != plain, "some output has a loop"
    rules = [LoopRule(1, times) for times in (2, 3, 4)]  # other objects make another generator
    assert len({str(tokens(translator.translate(TEXTS, stopping_rules=[rule]))) for rule in rules}) == 3


def test_utility(runs: Path) -> None:
    line = UtilityLine("", ["a b", "B c d"], ["B c d"])
    assert WordF1()(line).tolist() == [[pytest.approx(40)], [100.0]]
    assert WordF1(ignore_case=False)(line)[0, 0] == 0.0
    settings = {"sampling": True, "beam": 8}
    plain = by_object(runs, nbest=8, **settings)
    keys = ("generation.sampling=true", "generation.beam=8", "generation.mbr=word_f1", "utility.ignore_case=false")
    for before, after in zip(plain, by_command(runs, "utility", *keys), strict=True):
        texts = [item.text for item in before.hypotheses]
        (found,) = expected_utilities([("", texts)], WordF1(ignore_case=False))
        assert after["hypotheses"][0]["text"] == texts[found.index(max(found))]
    assert shown(by_object(runs, mbr=WordF1(), **settings)) != shown(by_object(runs, **settings))


def test_line_stage(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LINE_STAGES, "_entries", {})  # a stage without a key would run in every test after this one
    (tmp_path / "input").write_text("A dog 3. A man 4.\n\na dog\n", encoding="utf-8")
    keys = (f"path={runs / 'a'}", f"input={tmp_path / 'input'}", "format=json", "generation.max_len_b=12")
    outcome = done("generate", f"common.user_dir={EXAMPLES / 'line_stage.py'}", *keys)
    assert "numbers of the sources that outputs lack: 2" in outcome.err
    found = [json.loads(line) for line in outcome.out.splitlines()]
    assert [line.get("lacking") for line in found] == [["3", "4"], None, None]
    with_stage = Translator(str(runs / "a")).translate(["A dog 3. A man 4.", ""])
    assert [line.lacking for line in with_stage] == [["3", "4"], []]
    assert copy.deepcopy(pickle.loads(pickle.dumps(with_stage[0]))).lacking == ["3", "4"]
    with pytest.raises(AttributeError, match="no line stage added it"):
        _ = with_stage[0].lackign


def in_a_process(name: str, example: str, *keys: str) -> str:
    """What a command prints, in a process of its own: what the example registers is not there in other tests."""
    code = ["-m", f"seqgen.cli.{name}", f"common.user_dir={EXAMPLES / example}.py", *keys]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent.parent), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, *code], check=False, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_keys_of_decoding(runs: Path) -> None:
    keys = ("generation.processors=[rewarded]", "generation.token_reward=2.0", "generation.beam=3", "format=json")
    files = (f"path={runs / 'a'}", f"input={runs / 'input'}", "generation.max_len_b=12")
    found = [json.loads(line) for line in in_a_process("generate", "keys", *files, *keys).splitlines()]
    assert outputs(found) == shown(by_object(runs, processors=[WordReward(2, 2.0)], beam=3))


@pytest.mark.slow
def test_output_format(runs: Path) -> None:
    keys = (f"path={runs / 'a'}", f"input={runs / 'input'}", "generation.max_len_b=12", "generation.nbest=2")
    found = in_a_process("generate", "output_format", *keys, "format=numbered")
    wanted = [f"{line.id + 1}\t{line.score:.2f}\t{line.text}" for line in by_object(runs)]
    assert found.splitlines() == wanted


@pytest.mark.slow
def test_model_format(runs: Path, tmp_path: Path) -> None:
    keys = (f"path={runs / 'a'}", "format=numpy", f"output={tmp_path / 'out'}")
    assert f"{tmp_path / 'out'}: " in in_a_process("convert", "model_format", *keys)
    loaded = load_model(str(runs / "a"))
    weights = numpy.load(tmp_path / "out" / "weights.npz")
    for name, value in loaded.model.state_dict().items():
        assert numpy.array_equal(weights[name], value.numpy()), name
    tokens = json.loads((tmp_path / "out" / "tokens.json").read_text(encoding="utf-8"))
    assert tokens["target"] == [*loaded.task.target_dictionary]


def test_observer(runs: Path, tmp_path: Path) -> None:
    beam = 3
    keys = (f"generation.beam={beam}", "generation.nbest=3", "generation.suppress=[e]")
    plain = by_command(runs, "observer", *keys)
    watch = ("generation.observers=[outcomes]", f"observer.outcomes.file={tmp_path / 'out.jsonl'}")
    assert outputs(by_command(runs, "observer", *keys, *watch)) == outputs(plain)
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    for sentence in range(len(plain)):
        own = [record for record in records if record["sentence"] == sentence]
        assert [record["step"] for record in own] == list(range(len(own)))
        assert sum(record.get("finished", 0) for record in own) == beam
        for record in own:
            assert sum(record[name] for name in record.keys() - {"step", "sentence", "forbidden_by"}) == 2 * beam
    forbidden = sum((Counter(record["forbidden_by"]) for record in records), Counter())
    assert forbidden["Forbid"], "the tokens that generation.suppress forbids are among the most probable ones"


def test_cache() -> None:
    """Its rounding changes scores slightly; without rounding they are equal."""
    model = text_model()
    cache.use(model.model)
    one, other = (Translator(loaded, batch_size=1, **SETTINGS) for loaded in (text_model(), model))

    def scores(translator: Translator) -> list[float]:
        return [item.score for line in translator.translate(TEXTS) for item in line.hypotheses]

    exact = scores(one)
    assert 0 < max(abs(a - b) for a, b in zip(exact, scores(other), strict=True)) < 0.05
    with mock.patch.object(torch.Tensor, "bfloat16", lambda tensor: tensor):  # without rounding
        assert scores(other) == pytest.approx(exact, abs=1e-6)


def test_tokenizer() -> None:
    words = Dictionary()
    for token in (CAPITAL, "der", "hund"):
        words.add_symbol(token)
    tokenizer = CasedWordTokenizer(words)
    assert tokenizer.encode("Der Hund der") == [4, 5, 4, 6, 5]
    assert tokenizer.decode([4, 5, 4, 6, 5]) == "Der Hund der"


def test_criterion() -> None:
    """With ``gamma=0`` it is cross-entropy; its loss and its gradient are finite where ``p = 1``."""
    model, task = build("transformer_tiny"), TinyTask()
    words = torch.tensor([[5, 6, 2], [7, 2, 1]])
    previous = torch.tensor([[2, 5, 6], [2, 7, 1]])
    batch = replace(batch_of([(4, 5, 2), (6, 2)]), target=words, prev_output_tokens=previous)
    focal, plain = FocalCriterion(FocalConfig(0.0), task), CrossEntropyCriterion(CrossEntropyConfig(), task)
    torch.testing.assert_close(focal(model, batch).loss, plain(model, batch).loss)
    lprobs = model(batch.source.src_tokens, batch.source.src_lengths, previous).logits.log_softmax(-1)
    own = lprobs.gather(2, words.unsqueeze(2)).squeeze(2)[words != 1]
    wanted = -((1 - own.exp()) ** 1.5 * own).sum()
    torch.testing.assert_close(FocalCriterion(FocalConfig(1.5), task)(model, batch).loss, wanted)

    logits = (torch.nn.functional.one_hot(words, VOCAB) * 1e4).requires_grad_()
    sure = ScriptedModel(random_rule(VOCAB, seed=0))
    with mock.patch.object(sure, "forward", return_value=DecoderOut(logits, None)):
        FocalCriterion(FocalConfig(0.5), task)(sure, batch).loss.backward()
    assert logits.grad.isfinite().all()


def test_command(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("the dog\nthe ☃ dog ☃☃\n", encoding="utf-8")
    text, path = f"input={tmp_path / 'text'}", f"path={runs / 'a'}"
    for arguments, code, shown in (
        ([path, text], 1, "line 2: ☃ ☃☃\n"),
        ([text], 2, "set path=RUN input=FILE\n"),
        ([path, text, "inptu=x"], 2, "did you mean 'input'?"),
    ):
        with pytest.raises(SystemExit) as ended:
            run(UnknownWordsConfig, main, "", arguments)
        printed = capsys.readouterr()
        assert ended.value.code == code
        assert shown in printed.out + printed.err


def test_the_reference_is_the_surface() -> None:
    """Every name is in one group, and the page is what ``python -m tests.reference`` writes."""
    for module in (seqgen.extend, seqgen.config):
        names = [*chain.from_iterable(reference.groups(module).values())]
        assert sorted(names) == sorted({*module.__all__}) == sorted(module.__all__)
    assert (reference.ROOT / "docs" / "reference.md").read_text(encoding="utf-8") == reference.page()


def test_methods_that_a_subclass_implements_are_explained() -> None:
    pages = (reference.ROOT / "docs" / page for page in ("extending.md", "papers.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    for cls in filter(inspect.isclass, vars(seqgen.extend).values()):
        for name in reference.methods(cls):
            source = inspect.getsource(getattr(cls, name))
            assert f"`{name}" in text or not re.search("abstractmethod|raise NotImplementedError", source), (cls, name)
