"""Medusa heads (examples/papers/medusa.py) against greedy search, and against drafts and losses computed plainly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from examples.papers.medusa import Heads, Medusa, MedusaDraft, TrainHeadsConfig, head_losses, main
from seqgen.cli.command import run
from seqgen.core.beam_search import Greedy
from seqgen.decoding.speculative.verification import Drafts
from tests.commands import SMALL_TRANSFORMER, command, corpus, training_arguments
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB, sharp
from tests.scripted_model import batch_of, dictionary
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

SOURCES = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2), (2,), (7, 8, 9, 2)]
PAPERS = Path(__file__).parent.parent.parent / "examples" / "papers"


def random_heads(count: int, dim: int, scale: float = 0.3) -> Heads:
    """Heads in float64 whose drafts differ from what the decoder predicts next."""
    torch.manual_seed(1)
    heads = Heads(count, dim).double()
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return heads


def written(heads: Heads, folder: Path) -> str:
    save_file(heads.state_dict(), folder / "heads.safetensors")
    return str(folder / "heads.safetensors")


def dim_of(model: Any) -> int:
    out = model.encoder(torch.tensor([[4, 2]]), torch.tensor([2]))
    size: int = model.decoder.extract_features(torch.tensor([[2]]), out)[0].size(-1)
    return size


def decode(models: list[Any], search: Any, sources: list[tuple[int, ...]] = SOURCES, **options: Any) -> Any:
    options = {"max_len_a": 0.5, "max_len_b": 8, "min_len": 0, **options}
    return make_generator(models, dictionary(VOCAB - 4), search_strategy=search, **options).generate(batch_of(sources))


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (["transformer_shared"], {}),
        (["transformer_shared"], {"lazy_compaction": False}),
        (["transformer_shared"], {"semantics": "huggingface"}),
        (["transformer_shared"], {"use_cache": False, "no_repeat_ngram_size": 2}),
        (["fconv_tiny"], {"max_len": 3}),
        (["lstm_tiny", "t5_tiny"], {"unk_penalty": -1.0}),
    ],
    ids=str,
)
def test_the_output_is_that_of_greedy_search(names: list[str], options: dict[str, Any], tmp_path: Path) -> None:
    """In batches, alone and in ensembles; with heads that are often right, and with random ones."""
    models = [sharp(name) for name in names]
    heads = random_heads(3, dim_of(models[0]))
    wanted = decode(models, Greedy(), **options)
    for drafted in (Heads(1, dim_of(models[0])).double(), heads):
        search = Medusa(written(drafted, tmp_path))
        assert_same(decode(models, search, **options), wanted)
        assert search.verified > 0
    for source, hypotheses in list(zip(SOURCES, wanted, strict=True))[:2]:
        assert_same(decode(models, search, [source], **options), [hypotheses])


@torch.no_grad()
@pytest.mark.parametrize("scale", [0.0, 1.0])  # heads that are often right, as the model repeats itself, and wrong ones
def test_drafts_are_the_heads_of_the_features_that_predicted_the_newest_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    """Compared with features that are computed from scratch for each prefix."""
    model = sharp("transformer_shared")
    heads = random_heads(2, dim_of(model), scale)
    drafts: list[tuple[Tensor, Tensor | None, Tensor]] = []
    propose = MedusaDraft.propose

    def recording(self: MedusaDraft, step: int, generated: Tensor, count: int) -> Drafts:
        found = propose(self, step, generated, count)
        drafts.append((generated.clone(), self.target.newest_features, found.tokens))
        return found

    monkeypatch.setattr(MedusaDraft, "propose", recording)
    search = Medusa(written(heads, tmp_path))
    decode([model], search, [SOURCES[0]], max_len=9)
    assert search.accepted >= 4 if scale == 0 else search.accepted < search.verified
    encoder_out = model.encoder(torch.tensor([SOURCES[0]]), torch.tensor([5]))
    assert drafts[0][1] is None
    for generated, features, tokens in drafts[1:]:
        h = model.decoder.extract_features(generated[0, :, :-1].clone(), encoder_out)[0][0, -1]
        torch.testing.assert_close(features, h.unsqueeze(0))
        for k in range(tokens.size(-1)):
            a, b = heads.hidden[k], heads.output[k]
            inner = h @ a.weight.T + a.bias
            changed = h + (inner / (1 + (-inner).exp())) @ b.weight.T + b.bias
            assert int(tokens[0, 0, k]) == int(model.decoder.output_layer(changed).argmax())


def test_the_loss_of_each_head_is_that_of_the_token_it_predicts() -> None:
    loaded = text_model()
    task, model = loaded.task, loaded.model
    heads = random_heads(3, dim_of(model))
    pairs = [(TEXTS[0], "w3 w4 w5 w6"), (TEXTS[1], "w7")]
    batch = task.collate([(i, task.encode_source(s), task.encode_target(t)) for i, (s, t) in enumerate(pairs)], model)
    with torch.no_grad():
        found = head_losses(heads, batch, model, 1)
        wanted = [0.0] * 3
        for source, target in pairs:
            src, tgt = task.encode_source(source), task.encode_target(target).tolist()
            out = model.encoder(src.unsqueeze(0), torch.tensor([len(src)]))
            features = model.decoder.extract_features(torch.tensor([[2, *tgt[:-1]]]), out)[0]
            lprobs = model.decoder.output_layer(heads(features)[0]).log_softmax(-1)  # (T, heads, V)
            for t in range(len(tgt)):
                for k in range(3):
                    if t + 1 + k < len(tgt):
                        wanted[k] -= float(lprobs[t, k, tgt[t + 1 + k]])
    assert found.tolist() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.slow
def test_commands(tmp_path: Path) -> None:
    """One command trains heads, and another one decodes with them and prints the acceptance rate."""
    data, model, heads = corpus(tmp_path / "DATA"), tmp_path / "run", tmp_path / "heads"
    arguments = [*training_arguments(data, model), *SMALL_TRANSFORMER, "optimization.max_update=1"]
    assert command("train", *arguments).code == 0
    files = [f"source={data}/test.en", f"target={data}/test.de", f"heads={heads}", "count=2", "common.threads=1"]
    with pytest.raises(SystemExit) as exit_:
        run(TrainHeadsConfig, main, "", [f"path={model}", *files])
    assert exit_.value.code == 0
    decode = [f"path={model}", f"input={data}/test.en", "generation.beam=1", "generation.max_len=6", "common.threads=1"]
    keys = [f"common.user_dir={PAPERS}/medusa.py", "generation.search=medusa", f"search.heads={heads}"]
    alone, drafted = command("generate", *decode), command("generate", *decode, *keys)
    assert (drafted.code, drafted.out) == (0, alone.out), drafted.err
    assert "drafted tokens were verified" in drafted.err
    assert "drafted" not in alone.err
