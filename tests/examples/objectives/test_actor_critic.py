"""Actor-critic training: the loss is the formula in each optimizer step, and training resumes and is shared."""

import copy
import itertools
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from examples.objectives.actor_critic import ActorCritic, ActorCriticConfig
from seqgen.checkpoints.run_checkpoints import read_weights
from seqgen.extend import CheckpointError, TrainingContext
from seqgen.training.distributed import ProcessGroup
from tests.examples.objectives import tiny
from tests.parallel_training import train_in, train_together
from tests.training.test_parallel import COMMON, TOLERANCE, compare
from tests.training_runs import Lab, assert_identical, everything, records

RUN = ["criterion=actor_critic", "criterion.decode.max_len=12", "criterion.optimizer_steps=3"]
RUN += ["optimization.lr=[0.01]", "dataset.validate_interval=0", "criterion.token_loss=0.02"]


def made(model: Any, **keys: Any) -> ActorCritic:
    cfg = ActorCriticConfig(decode=tiny.decoding(**tiny.SAMPLING, beam=6, max_len=5), **keys)
    criterion = ActorCritic(cfg, tiny.task())
    criterion.begin_training(model)
    criterion.module.double()
    return criterion


def plain_values(model: Any, critic: Any, batch: Any, row: int, tokens: list[int]) -> Tensor:
    """The critic's estimate before each drawn token, from one row without padding."""
    length = batch.source.src_lengths[row]
    encoder_out = model.encoder(batch.source.src_tokens[row, None, :length], length[None])
    features, _ = model.decoder.extract_features(torch.tensor([[tiny.EOS, *tokens[:-1]]]), encoder_out)
    return (features[0] @ critic.weight[0] + critic.bias)[:4]


def plain_loss(criterion: ActorCritic, now: Any, critics: Any, first: Any, found: Any, batch: Any) -> Tensor:
    """The formula, output by output; ``first`` is the model of the first step, and ``critics`` those of both."""
    total, cfg = torch.zeros((), dtype=torch.float64), criterion.cfg
    for row, outputs in enumerate(found):
        for tokens in outputs:
            reward = tiny.utility(criterion, batch, row, tokens) / 100
            before = [*plain_values(first, critics[0], batch, row, tokens).tolist(), reward]
            changes = [after - value for value, after in itertools.pairwise(before)]
            values = plain_values(now, critics[1], batch, row, tokens)
            lprobs = [tiny.drawn_lprobs(each, batch, row, tokens, 5) for each in (first, now)]
            for t in range(len(changes)):
                gain = sum(cfg.decay**later * change for later, change in enumerate(changes[t:]))
                ratio = (lprobs[1][t] - lprobs[0][t].detach()).exp()
                clipped = ratio.detach().clamp(1 - cfg.clip, 1 + cfg.clip)
                moves = bool(ratio == clipped) or (gain > 0) == bool(ratio < clipped)
                bounded = ratio if moves else clipped
                error = (values[t] - (gain + before[t])) ** 2
                total = total + (cfg.value_weight * error - bounded * gain) / len(outputs)
    return total


@pytest.mark.parametrize("keys", [{"decay": 1.0, "clip": 0.02}, {"decay": 0.5, "value_weight": 2.0}])
def test_the_loss_is_the_formula_in_each_step(keys: dict[str, Any]) -> None:
    """Of real samples, with the gradients of the model and of the critic; the weights change between the steps."""
    model = tiny.model()
    criterion, batch = made(model, **keys), tiny.pairs(model)
    first, critic = copy.deepcopy(model), copy.deepcopy(criterion.module)
    first.get_normalized_probs = tiny.without_padding
    found = tiny.tokens_of(criterion.decode(model, batch))
    assert {len(tokens) for row in found for tokens in row} > {1, 5}
    criterion.begin_update(TrainingContext(0, kept={}))
    outcomes = []
    for step in range(3):
        loss, logged = criterion.sequence_loss(model, batch)
        wanted = plain_loss(criterion, model, (critic, criterion.module), first, found, batch)
        assert float(loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-10)
        every = torch.nn.ModuleList([model, criterion.module])
        tiny.assert_equal(tiny.gradient(every, loss), tiny.gradient(every, wanted))
        outcomes.append((float(logged["clipped"]), float(logged["value_error"])))
        with torch.no_grad():
            for parameter in (*model.parameters(), *criterion.module.parameters()):
                parameter += 0.02 * torch.sin(torch.arange(parameter.numel()).view_as(parameter) + step)
    assert outcomes[0][0] == 0 < outcomes[2][0]
    assert len({error for _, error in outcomes}) == 3


@pytest.mark.slow
def test_training_resumes_bit_by_bit_and_learns(lab: Lab) -> None:
    """Also the critic and its optimizer state, which are no part of the decoded model."""
    whole = lab.train("whole", *RUN, "optimization.max_update=4")
    for last in (2, 4):
        parts = lab.train("parts", *RUN, f"optimization.max_update={last}")
    state = everything(whole)["state"]
    assert_identical(everything(parts), everything(whole))
    assert records(parts) == records(whole)
    assert state["update"] == 4
    assert float(state["optimizer"]["state"]["criterion.weight"]["step"]) == 12
    assert {*state["criterion_weights"]} == {"weight", "bias"}
    assert not any("criterion" in name for name in read_weights(whole / "checkpoints" / "last"))
    early = everything(lab.train("early", *RUN, "optimization.max_update=1"))["state"]["criterion_weights"]
    assert not torch.equal(early["weight"], state["criterion_weights"]["weight"])


def test_each_batch_is_decoded_once_in_an_update(lab: Lab) -> None:
    own = lab.trainer(*RUN, "optimization.groups={criterion.*:{lr_scale:0.1}}")
    assert own.optimizer.param_groups[0]["names"] == ["criterion.weight", "criterion.bias"]
    examples = [own.task.dataset("train").example(i, epoch=1, seed=1) for i in range(4)]
    batches = [own.task.collate(part, own.model) for part in (examples[:2], examples[2:])]
    with mock.patch.object(own.criterion, "decode", wraps=own.criterion.decode) as decode:
        for count in (2, 4):
            assert not own.train_update(batches, 1).skipped
            assert decode.call_count == count


@pytest.mark.parametrize("damage", ["missing", "shape"])
def test_weights_of_another_critic_are_refused(lab: Lab, damage: str) -> None:
    own = lab.trainer(*RUN)
    state = own.state_dict()
    others = {"missing": {}, "shape": {"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}}
    with pytest.raises(CheckpointError, match=r"here/last, parameters of the criterion: .*(missing|shape): .*weight"):
        own.load_state_dict(own.weights(), {**state, "criterion_weights": others[damage]}, "here/last")


@pytest.mark.slow
def test_two_ranks_are_one(lab: Lab) -> None:
    """By DDP and FSDP, in float64, with accumulation, an average of the weights and validation; see test_parallel."""
    keys = [*COMMON, *RUN, "dataset.validate_decode=0", "dataset.validate_interval=1", "optimization.ema_decay=0.9"]
    keys += ["dataset.max_tokens=400", "optimization.max_epoch=1", "model.dropout=0"]
    train_in(lab, ("one", "float64", [*keys, "optimization.update_freq=[4]"]), ProcessGroup())
    keys.append("optimization.update_freq=[2]")
    jobs = [(name, "float64", [*keys, f"distributed_training.sharding={name}"]) for name in TOLERANCE]
    train_together(lab.root, 2, jobs, "fork")
    for name in TOLERANCE:
        compare(lab.root / "one", lab.root / name, TOLERANCE[name])
