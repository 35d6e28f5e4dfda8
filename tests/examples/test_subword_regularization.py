"""Segmentations that are drawn in each epoch (examples/papers/subword_regularization.py)."""

from pathlib import Path

import pytest

from examples.papers.subword_regularization import Sampler, SubwordRegularizationConfig, SubwordRegularizationTask
from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer, train_sentencepiece

TEXT = [f"{a} {b} {c}" for a in ("one", "two") for b in ("green", "red", "blue") for c in ("cats", "dogs")]


@pytest.mark.parametrize(("kind", "size"), [("unigram", 20), ("bpe", 40)])
def test_in_a_process_sampling_depends_on_the_seed_alone(kind: str, size: int) -> None:
    tokenizer = SentencePieceTokenizer(train_sentencepiece(TEXT, vocab_size=size, model_type=kind))
    sampler, text = Sampler(tokenizer, 0.1 if kind == "unigram" else 0.5, -1), "one green dogs two blue cats"
    samples = [tuple(sampler(text, seed)) for seed in range(20)]
    assert len(set(samples)) > 1
    assert {tokenizer.decode(ids) for ids in samples} == {text}
    assert [tuple(sampler(text, seed)) for seed in reversed(range(20))] == samples[::-1]


@pytest.mark.parametrize("joined", [True, False])
def test_training_pairs_are_sampled(tmp_path: Path, joined: bool) -> None:
    for language in ("en", "de"):
        (tmp_path / f"text.{language}").write_text("".join(f"{line}\n" for line in TEXT))
    text = str(tmp_path / "text")
    keys = {"source_lang": "en", "target_lang": "de", "train": text, "valid": text, "vocab_size": 20}
    cfg = SubwordRegularizationConfig(**keys, joined_dictionary=joined)  # type: ignore[arg-type]
    task = SubwordRegularizationTask.setup_task(cfg, tmp_path / "run")
    longest = max(len(task.target_tokenizer.encode(line)) for line in TEXT) + 2
    dataset = task.dataset("train").limited(None, longest)  # type: ignore[attr-defined]

    def epoch(number: int, seed: int = 1) -> list[tuple[list[int], list[int]]]:
        examples = [dataset.example(i, epoch=number, seed=seed) for i in range(len(dataset))]
        return [(example.source.tolist(), example.target.tolist()) for example in examples]

    assert epoch(1) == epoch(1)
    assert epoch(1) != epoch(2)
    assert epoch(1) != epoch(1, seed=2)
    assert any(source != target for source, target in epoch(1)), "the sides are sampled apart"
    for source, target in epoch(1):
        assert task.source_tokenizer.decode(source) == task.target_tokenizer.decode(target)
        assert source[-1] == target[-1] == 2
        assert len(target) <= longest
    valid = task.dataset("valid")
    assert len({tuple(valid.example(0, epoch=number, seed=1).source.tolist()) for number in range(9)}) == 1
