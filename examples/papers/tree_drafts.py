"""Tree drafts (Miao et al. 2023, "SpecInfer: Accelerating Large Language Model Serving with Tree-based Speculative
Inference and Verification", sections 3 and 4), verified by an ensemble.

A small model drafts a tree of continuations. With the widths ``(w_1, ..., w_D)``, a node of depth ``d - 1`` has as
children its ``w_d`` most probable tokens (the paper's expansion-based tree). The models read all of the tree at once;
the output follows the tree from the root, as long as a child is the token that greedy search chooses::

    y_t = argmax_v log sum_i p_i(v | y_<t, x) / N,      accepted if y_t is a child of the node of y_<t

Then the next tree is drafted. Each of the ``w_1 * ... * w_D`` paths is a row of the batch (in the paper, one row with a
tree attention mask), which needs no other attention and works with every model that speculative decoding works with.

``seqgen-generate common.user_dir=examples/papers/tree_drafts.py path=[runs/a,runs/b] input=test.en
generation.search=tree_drafts search.draft=runs/b search.widths=[3,2,1,1]``

Expect the output of greedy search with the ensemble, token for token, and a line with the number of its passes at the
end. More passes are saved than with the chain ``widths=[1,1,1,1]``, at the cost of more rows in each pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen import load_model
from seqgen.addons.speculative import Draft, Drafter, Drafts, LookAhead, SpeculativeSearch, SpeculativeSession
from seqgen.extend import (
    Candidates,
    ConfigError,
    EncoderDecoderModel,
    Greedy,
    MemberOutput,
    MemberSpec,
    Resources,
    Session,
    Source,
    option,
    register_search,
)


class TreeDraft(Draft):
    """Drafts trees for one batch, of which each row of a sentence has a path; see ``Draft``."""

    def __init__(self, model: EncoderDecoderModel, target: TreeSession, source: Source):
        self.target, self.widths = target, target.speculative.widths
        of_session = model.start_token(target.setup.eos), target.setup.fast, target.reach
        self.member = LookAhead(model, source, target.speculative.paths, *of_session)

    def propose(self, step: int, generated: Tensor, count: int) -> Drafts:
        """Draft a tree of up to ``count`` tokens after ``generated``, ``(live, paths, 1 + step)`` int64."""
        self.member.reorder_beams(self.target.parents())
        self.member.rewind(step)
        tokens, paths = generated, torch.arange(generated.size(1), device=generated.device)
        for depth in range(max(0, min(count, self.member.model.max_positions()[1] - step))):
            self.member.read(tokens.flatten(0, 1))
            logits = self.member.next_output(tokens.flatten(0, 1)).logits.unflatten(0, tokens.shape[:2])
            # of 6 paths with widths 3 and 2, ranks 0 0 1 1 2 2 at depth 0, and 0 1 0 1 0 1 at depth 1
            ranks = paths // math.prod(self.widths[depth + 1 :]) % self.widths[depth]
            best = logits.topk(self.widths[depth], dim=-1).indices
            tokens = torch.cat([tokens, best.gather(-1, ranks.view(1, -1, 1).expand(len(best), -1, -1))], dim=-1)
        return Drafts(tokens[..., 1 + step :], [])

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Draft.select_sentences``."""
        self.member.select_sentences(keep)


class TreeSession(SpeculativeSession):
    """Decodes a batch with one beam, whose members read a tree of drafts: a row of theirs is one path of the tree."""

    speculative: TreeDrafts

    def new_member(self, spec: MemberSpec, source: Source, start_token: int | None) -> LookAhead:
        """A member with a row for each path."""
        return LookAhead(spec.model, source, self.speculative.paths, start_token, self.setup.fast, self.reach)

    def accepted(self) -> tuple[Tensor, Tensor]:
        """``(live,)`` int64 each: the number of generated tokens that a path of the tree has, and the path."""
        generated = self.backpointers.matrix()[..., 1 + self.start :][..., : self.drafts.tokens.size(-1)]
        return (self.drafts.tokens[..., : generated.size(-1)] == generated).cumprod(-1).sum(-1).max(1)

    def parents(self) -> Tensor:
        """``(live, paths)`` int64, for each row of a sentence the row that has read what was generated."""
        return self.accepted()[1].unsqueeze(1).expand(-1, self.speculative.paths)

    def look_ahead(self, step: int) -> None:
        """Draft a tree; the members read all of its paths in one pass."""
        last, parents = int(self.sentences.max_lengths.max()), self.parents()
        generated = self.backpointers.matrix().expand(-1, self.speculative.paths, -1)
        self.drafts = self.draft.propose(step, generated, min(self.speculative.draft_tokens, last - step + 1))
        tokens = torch.cat([generated, self.drafts.tokens], dim=-1)[..., : 1 + last].flatten(0, 1)
        for member in self.members:
            assert isinstance(member, LookAhead)
            member.reorder_beams(parents)
            member.rewind(step)
            member.read(tokens, self.setup.needs)
        self.start, self.stop = step, tokens.size(1)
        self.speculative.passes += 1

    def member_outputs(self) -> list[MemberOutput]:
        """The outputs of the row that each sentence follows."""
        outputs, self.speculative.steps = super().member_outputs(), self.speculative.steps + 1
        rows = torch.arange(len(self.live), device=self.live.device) * self.speculative.paths + self.accepted()[1]
        return [out.select(rows) for out in outputs]

    def advance(self, active: Candidates) -> None:
        """Without a path that has the chosen tokens, a new tree is drafted."""
        Session.advance(self, active)
        lost = self.accepted()[0] < self.backpointers.length - self.start
        if bool((lost & (active.scores[:, 0] > -torch.inf) & ~self.sentences.done).any()):
            self.stop = self.backpointers.length


class TreeDrafter(Drafter):
    """Drafts trees with a model."""

    def __init__(self, model: EncoderDecoderModel):
        self.model = model

    def begin(self, target: SpeculativeSession, source: Source) -> TreeDraft:
        """See ``Drafter.begin``."""
        assert isinstance(target, TreeSession)
        return TreeDraft(self.model.to(target.ids.device), target, source)


@dataclass
class TreeDraftsConfig:
    """Configuration of greedy search with tree drafts; its fields are the keys ``search.FIELD``."""

    draft: str = option(
        "", "run folder or checkpoint of the model that drafts, with the same target vocabulary", role="input_path"
    )
    widths: list[int] = option([3, 2, 1, 1], "children of each node of a tree, by depth", minimum=1)


@register_search("tree_drafts", config=TreeDraftsConfig)
class TreeDrafts(SpeculativeSearch):
    """Greedy search with tree drafts.

    Args:
        model: the model that drafts.
        widths: children of each node, by depth.
    """

    session_class = TreeSession

    def __init__(self, model: EncoderDecoderModel, widths: list[int]):
        super().__init__(TreeDrafter(model), len(widths), Greedy())
        self.widths, self.paths = widths, math.prod(widths)
        self.passes = self.steps = 0  # passes of the models, and steps, each of which is a pass without drafts

    @classmethod
    def build(cls, cfg: TreeDraftsConfig, resources: Resources) -> TreeDrafts:
        """Load the model that drafts."""
        if not cfg.draft or not cfg.widths or math.prod(cfg.widths) > min(1024, len(resources.dictionary)):
            raise ConfigError("set search.draft=MODEL, and search.widths=[3,2,1,1] with a product of at most 1,024")
        loaded = load_model(cfg.draft, resources.device, among=resources.models)
        if loaded.task.target_dictionary != resources.dictionary:
            raise ConfigError(f"search.draft={cfg.draft} has another target vocabulary; train it with the same one")
        return cls(loaded.model, cfg.widths)

    def summary(self) -> str:
        """The number of passes."""
        return f"{self.passes} passes of the models for {self.steps} steps of greedy search" if self.steps else ""
