"""Planning ahead (examples/papers): its ranking, its guide, its head and its commands."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.papers.planning_ahead import FitConfig, PlanningAhead, fit
from seqgen.addons.catalogue.constraint import TrieConstraint
from seqgen.addons.catalogue.prefix_trie import PrefixTrie
from seqgen.extend import pad_rows
from seqgen.text.translator import Translator
from tests.examples.test_commands import ended, generate, lines_of, run  # noqa: F401  # a fixture
from tests.scripted_model import dictionary
from tests.text_models import TEXTS, next_scores, task_of, text_model

pytestmark = pytest.mark.slow

ROWS = [(*tokens, 2) for length in (1, 2, 3) for tokens in itertools.product((4, 5, 6), repeat=length)]
SETS = torch.arange(1, len(ROWS) + 1).unsqueeze(1) >> torch.arange(-4, 6).clamp(min=0) & (torch.arange(10) >= 4)
"""The identifiers of documents, and as their sets the bits of their numbers."""


@torch.no_grad()
def lists_and_passes(name: str, **keys: Any) -> tuple[list[dict[tuple[int, ...], float]], list[tuple[Tensor, Tensor]]]:
    """For each text the scores of what was found, best first, and of all documents ``log p`` and the first pass.

    The latter is computed by a loop over the set of each document.
    """
    loaded = text_model(name, task=task_of(words=dictionary(6)))
    encode, passes = loaded.task.encode_source, list[tuple[Tensor, Tensor]]()
    encoded = [loaded.model.encoder(ids[None], torch.tensor([len(ids)])).encoder_out[0] for ids in map(encode, TEXTS)]
    head = nn.Linear(encoded[0].size(1), 10).double().requires_grad_(False)
    head.weight.mul_(3.0)
    head.bias.add_(6.0)
    for text, features in zip(TEXTS, encoded, strict=True):
        lprobs = next_scores(loaded, text)
        weights = torch.stack([head(x).clamp(min=0).add(1).log() for x in features]).amax(0)
        sums = [sum(lprobs(row[:place])[token] for place, token in enumerate(row)) for row in ROWS]
        passes.append((torch.tensor(sums), torch.stack([weights[row.bool()].sum() for row in SETS])))
    documents, sets = pad_rows([torch.tensor(row) for row in ROWS], 1), SETS.double().to_sparse()
    guide = [PlanningAhead(head, documents, sets, **given) for given in keys.pop("guide", [])]
    options = {"length_penalty": 0.0, "min_len": 1, "max_len_b": 4, "nbest": keys["beam"], **keys}
    lines = Translator(loaded, processors=[TrieConstraint(PrefixTrie.of(ROWS)), *guide], **options).translate(TEXTS)
    return [{tuple(one.tokens.tolist()): one.score for one in line.hypotheses} for line in lines], passes


@pytest.mark.parametrize("name", ["transformer_tiny", "t5_tiny", "fconv_tiny"])
@pytest.mark.parametrize(("best", "batch_size"), [(len(ROWS), 5), (1000, 1), (7, 5)])
def test_a_beam_as_wide_as_the_catalogue_ranks_by_the_sum(name: str, best: int, batch_size: int) -> None:
    guide = [{"best": best, "weight": 0.5}]
    lists, passes = lists_and_passes(name, guide=guide, beam=len(ROWS), batch_size=batch_size)
    for found, (sums, scores) in zip(lists, passes, strict=True):
        scores = scores.where(scores >= scores.topk(min(best, len(ROWS))).values[-1], 0.0)
        total, order = (sums + 0.5 * scores).sort(descending=True)
        assert list(found) == [ROWS[number] for number in order]
        assert list(found.values()) == pytest.approx(total.tolist(), abs=1e-6)


def test_the_first_pass_finds_what_a_beam_prunes() -> None:
    for beam, pruned in ((2, 3), (10, 1)):
        missed = []
        for guide in ([{"weight": 10.0}], []):
            found, passes = lists_and_passes("transformer_tiny", guide=guide, beam=beam)
            best = [ROWS[int((sums + 10 * scores).argmax())] for sums, scores in passes]
            missed.append(sum(one not in rows for one, rows in zip(best, found, strict=True)))
        assert missed[0] == 0 < pruned <= missed[1]


def test_the_commands(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    """A head that is fitted to find the line of each text finds more of them."""
    data, head = run.parent / "DATA", f"head={tmp_path}/head.safetensors"
    pairs = sorted(set(zip(lines_of(run, "de"), lines_of(run, "en"), strict=True)))
    for name, column in (("catalogue", 0), ("sets", 1)):
        (tmp_path / name).write_text("".join(f"{pair[column]}\n" for pair in pairs))
    files = [f"source={data}/test.en", f"target={data}/test.de", f"catalogue={tmp_path}/catalogue", f"path={run}", head]
    assert ended(FitConfig, fit, *files, f"sets={data}/train.en") == 2
    assert "give a line for each" in capsys.readouterr().err
    (tmp_path / "long").write_text("w " * 2000 + "\n" * len(pairs))
    source = f"source={tmp_path}/long", f"target={tmp_path}/catalogue"
    assert ended(FitConfig, fit, *files, *source, f"sets={tmp_path}/sets") == 2
    assert "longer than the 1024 positions" in capsys.readouterr().err
    assert ended(FitConfig, fit, *files, f"sets={tmp_path}/sets", "epochs=60", "lr=0.01") == 0
    keys = [f"generation.allowed_outputs={tmp_path}/catalogue", "generation.length_penalty=0", "generation.beam=3"]
    plain = generate(run, "", *keys).out.splitlines()
    keys += [f"processor.planning_ahead.{key}" for key in (head, f"sets={tmp_path}/sets", "weight=10")]
    found = generate(run, "planning_ahead.py", *keys, "generation.processors=[planning_ahead]").out.splitlines()
    hits = [sum(map(str.__eq__, lines, lines_of(run, "de"))) for lines in (plain, found)]
    assert hits[1] > hits[0]
