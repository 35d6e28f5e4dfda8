"""Medusa heads and tree drafts of examples/papers against greedy search, and drafts and losses computed plainly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from examples.papers.medusa import Heads, Medusa, MedusaDraft, head_losses
from examples.papers.tree_drafts import TreeDrafts
from seqgen.addons.speculative.verification import Drafts
from seqgen.extend import Greedy, Hypothesis, Search
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB, sharp
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

SOURCES = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2), (2,), (7, 8, 9, 2)]


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


def decode(models: list[Any], search: Search, sources: Any = SOURCES, **options: Any) -> list[list[Hypothesis]]:
    options = {"max_len_a": 0.5, "max_len_b": 8, "min_len": 0, **options}
    return make_generator(models, dictionary(VOCAB - 4), search_strategy=search, **options).generate(batch_of(sources))


def with_heads(count: int) -> Callable[[Any, Path], Search]:
    """Medusa with new heads, which are often right, or several random ones."""
    heads = random_heads if count > 1 else Heads
    return lambda model, folder: Medusa(written(heads(count, dim_of(model)).double(), folder))


def with_trees(draft: str, *widths: int) -> Callable[[Any, Path], Search]:
    return lambda model, folder: TreeDrafts(sharp(draft), [*widths])


NO_CACHE, PROMPTS = {"use_cache": False, "no_repeat_ngram_size": 2}, [(4, 9, 12, 2), (7, 8, 9, 2)]


@pytest.mark.parametrize(
    ("search", "names", "options"),
    [
        (with_heads(1), ["transformer_shared"], {"semantics": "huggingface"}),
        (with_heads(3), ["transformer_shared"], NO_CACHE),
        (with_heads(3), ["fconv_tiny"], {"max_len": 3, "lazy_compaction": False}),
        (with_heads(1), ["lstm_tiny", "t5_tiny"], {"unk_penalty": -1.0}),
        (with_trees("transformer_tiny", 1, 1, 1), ["transformer_tiny", "lstm_tiny"], {"semantics": "huggingface"}),
        (with_trees("lstm_tiny", 3, 2, 1), ["transformer_tiny", "t5_tiny"], {"lazy_compaction": False}),
        (with_trees("fconv_tiny", 3, 2, 1), ["fconv_tiny", "transformer_tiny"], NO_CACHE),
        (with_trees("llama_tiny", 3, 2, 1), ["transformer_lm_tiny"], {"max_len": 5, "sources": PROMPTS}),
        (with_trees("llama_tiny", 3, 2, 1), ["llama_sliding"], {"max_len": 5, "sources": PROMPTS}),
    ],
)
def test_the_output_is_that_of_greedy_search(search: Any, names: list[str], options: Any, tmp_path: Path) -> None:
    """In batches, alone and in ensembles."""
    models = [sharp(name) for name in names]
    own = {"sources": SOURCES, **options}
    wanted, drafting = decode(models, Greedy(), **own), search(models[0], tmp_path)
    assert_same(decode(models, drafting, **own), wanted)
    assert drafting.verified > 0 if isinstance(drafting, Medusa) else 0 < drafting.passes <= drafting.steps
    for source, hypotheses in list(zip(own["sources"], wanted, strict=True))[:2]:
        assert_same(decode(models, drafting, **{**own, "sources": [source]}), [hypotheses])


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
            for k in range(3):
                wanted[k] -= sum(float(lprobs[t, k, token]) for t, token in enumerate(tgt[k + 1 :]))
    assert found.tolist() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("widths", [[1, 1, 1], [3, 2, 1], [2, 2]], ids=str)
def test_the_number_of_passes_is_that_of_trees_that_are_followed_plainly(widths: list[int]) -> None:
    words, source = 16, (4, 9, 12, 5, 2)
    ensemble, drafter = [random_rule(words, seed, 2) for seed in (1, 2)], random_rule(words, 1, 3)
    search = TreeDrafts(ScriptedModel(drafter), widths)
    options: dict[str, Any] = {"search_strategy": search, "max_len_b": 12, "min_len": 0}
    models = [ScriptedModel(rule) for rule in ensemble]
    found = make_generator(models, dictionary(words - 4), **options).generate(batch_of([source]))[0][0].tokens.tolist()
    passes, place = 0, 0
    while place < len(found):
        passes += 1
        for width in widths:  # an accepted token is read in the same pass
            history = tuple(found[:place])
            place += 1
            best = drafter(source, history).topk(width).indices.tolist()
            if place >= len(found) or found[place - 1] not in best:
                break
        else:
            place += 1
    assert search.passes == passes
    assert search.steps == len(found) > passes
