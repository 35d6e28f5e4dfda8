"""Built-in models with bugs that are usual in new ones; the check finds each and names its cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples import lstm
from seqgen.addons.checks.checking import check, diagnose
from seqgen.addons.checks.models import PASSES, STEPPING, WEIGHTS
from seqgen.addons.checks.subject import Subject, randomize_, tiny_dictionary
from seqgen.core.incremental_state import StateKey
from seqgen.core.model import EncoderDecoderModel
from seqgen.models import t5, transformer
from seqgen.modules.multihead_attention import MultiheadAttention
from seqgen.modules.positions import Positions
from tests.model_zoo import _NARROW, _NARROW_T5, registered

MODELS: dict[str, Callable[[], EncoderDecoderModel]] = {
    "lstm": registered("lstm_tiny", embed_dim=8, hidden_size=6),
    "transformer": registered("transformer", **_NARROW),
    "t5": registered("t5", joint=True, **_NARROW_T5),
}
Patch = Callable[..., None]


BUGS: dict[str, tuple[str, Callable[[Patch], None], str]] = {}
"""The model that gets a bug, what inserts it (given a function that replaces an attribute of a class), and the
beginning of the cause that the check should name."""


def bug(model: str, cause: str) -> Callable[[Callable[[Patch], None]], None]:
    return lambda insert: BUGS.update({insert.__name__: (model, insert, cause)})


def unchanged(self: Any, value: Any, *_: Any) -> Any:
    """Returns a state or cache as it is."""
    return value


# -- the LSTM example --------------------------------------------------------------------------------------------------


@bug("lstm", "the encoder's output is not reordered with the rows")
def lstm_encoder_output_not_reordered(patch: Patch) -> None:
    def reorder(self: Any, encoder_out: Any, new_order: Tensor) -> Any:
        return encoder_out.index_select(torch.arange(len(new_order)) % encoder_out.num_rows)

    patch(lstm.LSTMEncoder, "reorder_encoder_out", reorder)


@bug("lstm", "dropout or another source of randomness is active in evaluation")
def lstm_dropout_in_evaluation(patch: Patch) -> None:
    patch(nn.Dropout, "forward", lambda self, x: F.dropout(x, 0.1))


@bug("lstm", "the features of a sentence depend on padding")
def lstm_attends_to_padding(patch: Patch) -> None:
    features = lstm.LSTMDecoder.extract_features

    def unmasked(self: Any, tokens: Tensor, encoder_out: Any, *rest: Any, **options: Any) -> Any:
        return features(self, tokens, replace(encoder_out, encoder_padding_mask=None), *rest, **options)

    patch(lstm.LSTMDecoder, "extract_features", unmasked)


@bug("lstm", "a module keeps values of a pass on itself")
def lstm_state_on_the_module(patch: Patch) -> None:
    def put(self: Any, state: Any, module_state: Any) -> None:
        if state is not None:
            self.kept = module_state

    def get(self: Any, state: Any) -> Any:
        return None if not self.positions_seen(state) else self.kept

    patch(lstm.LSTMDecoder, "set_state", put)
    patch(lstm.LSTMDecoder, "get_state", get)


@bug("lstm", "copies of a module share a state")
def lstm_key_that_copies_share(patch: Patch) -> None:
    keys: list[StateKey] = []

    def state_key(self: Any) -> StateKey:
        keys[:] = keys or [StateKey(self)]
        return keys[0]

    patch(lstm.LSTMDecoder, "state_key", property(state_key))


@bug("lstm", "a step does not compute")
def lstm_cell_not_stored(patch: Patch) -> None:
    get = lstm.LSTMDecoder.get_state

    def without_cell(self: Any, state: Any) -> Any:
        found = get(self, state)
        return found and {**found, "cell": torch.zeros_like(found["cell"])}

    patch(lstm.LSTMDecoder, "get_state", without_cell)


@bug("lstm", "something computed from a weight is used after the weight has changed")
def lstm_keeps_a_transposed_weight(patch: Patch) -> None:
    def output_layer(self: Any, features: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return features @ self.embed_tokens.weight.t()
        if not hasattr(self, "transposed"):
            self.transposed = self.embed_tokens.weight.detach().t().clone()
        return features @ self.transposed.to(features)

    patch(lstm.LSTMDecoder, "output_layer", output_layer)


@bug("lstm", "something that the logits depend on is not saved")
def lstm_scale_is_not_a_parameter(patch: Patch) -> None:
    build = lstm.LSTMDecoder.__init__

    def init(self: Any, cfg: Any, *rest: Any) -> None:
        build(self, cfg, *rest)
        self.scale = torch.rand(cfg.embed_dim).double() + 0.5

    patch(lstm.LSTMDecoder, "__init__", init)
    patch(
        lstm.LSTMDecoder,
        "output_layer",
        lambda self, features: F.linear(features * self.scale.to(features), self.embed_tokens.weight),
    )


@bug("lstm", "a parameter does not reach the loss")
def lstm_attention_is_detached(patch: Patch) -> None:
    softmax = Tensor.softmax
    patch(Tensor, "softmax", lambda self, *args, **options: softmax(self.detach(), *args, **options))


# -- the transformer ---------------------------------------------------------------------------------------------------


@bug("transformer", "a position sees later target tokens")
def transformer_without_causal_mask(patch: Patch) -> None:
    def mask(self: Any, queries: Any, layer: int) -> Tensor:
        return torch.zeros(1, 1, queries.new, queries.seen + queries.new, dtype=torch.float64)

    patch(transformer.TransformerDecoder, "self_attention_mask", mask)


@bug("transformer", "a module does not roll back its state")
def transformer_does_not_roll_back(patch: Patch) -> None:
    patch(MultiheadAttention, "roll_back_state", unchanged)


@bug("transformer", "a module does not merge its state")
def transformer_positions_ignore_start_offsets(patch: Patch) -> None:
    forward = Positions.forward
    patch(Positions, "forward", lambda self, queries: forward(self, replace(queries, start_offsets=None)))


@bug("transformer", "the attention that is returned is not a distribution over")
def transformer_attention_is_a_sum_of_heads(patch: Patch) -> None:
    forward = MultiheadAttention.forward

    def summed(self: Any, *args: Any, **options: Any) -> Any:
        out, weights = forward(self, *args, **options)
        return out, None if weights is None else weights * self.num_heads

    patch(MultiheadAttention, "forward", summed)


# -- T5 ----------------------------------------------------------------------------------------------------------------


@bug("t5", "a mask hides the start token")
def t5_masks_its_start_token(patch: Patch) -> None:
    """The start token of T5 is padding."""
    mask = t5.T5Decoder.self_attention_mask

    def hiding(self: Any, queries: Any, layer: int) -> Tensor:
        bias = mask(self, queries, layer).clone()
        bias[..., 1 - queries.seen :, 0] = -1e9
        return bias

    patch(t5.T5Decoder, "self_attention_mask", hiding)


@bug("t5", "the differences have the size of rounding")
def t5_projects_in_float32(patch: Patch) -> None:
    def output_layer(self: Any, features: Tensor) -> Tensor:
        """The order of summation depends on the number of positions, as that of some processors' kernels does."""
        weight = self.output_projection.weight.float()
        if features.size(1) == 1:
            return F.linear(features.float().flip(-1), weight.flip(-1)).to(features.dtype)
        return F.linear(features.float(), weight).to(features.dtype)

    patch(t5.T5Decoder, "output_layer", output_layer)


def outcomes_of(build: Callable[[], EncoderDecoderModel]) -> tuple[Subject, list[Any]]:
    torch.manual_seed(0)
    words = tiny_dictionary()
    model = randomize_(build().double())
    subject = Subject(model, words, len(words), build=lambda: build().double())
    return subject, list(check(subject, PASSES | STEPPING | WEIGHTS))


EACH = [pytest.param(name, marks=pytest.mark.slow if bug[0] != "lstm" else ()) for name, bug in BUGS.items()]


@pytest.mark.parametrize("name", EACH)
def test_bugs_are_found_and_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, insert, cause = BUGS[name]
    insert(lambda owner, attribute, value: monkeypatch.setattr(owner, attribute, value, raising=False))
    subject, outcomes = outcomes_of(MODELS[model])
    assert any(outcome.violation for outcome in outcomes)
    found = diagnose(outcomes, subject)
    assert found.startswith(cause), [f"{o.name}: {o.violation.what}" for o in outcomes if o.violation]
