"""Built-in models with bugs that are usual in new ones; the check finds each and names its cause."""

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
from seqgen.extend import EncoderDecoderModel, MultiheadAttention
from seqgen.models import t5, transformer
from seqgen.modules.positions import Positions
from tests.model_zoo import _NARROW, _NARROW_T5, registered

MODELS: dict[str, Callable[[], EncoderDecoderModel]] = {
    "lstm": registered("lstm_tiny", embed_dim=8, hidden_size=6),
    "transformer": registered("transformer", **_NARROW),
    "t5": registered("t5", joint=True, **_NARROW_T5),
}
BUGS: dict[str, tuple[str, type, str, Callable[..., Any], str]] = {}
"""The model that gets a bug, a class, the names of its attributes that are replaced, a function that is given them and
returns the new ones, and the beginning of the cause that the check should name."""


def bug(model: str, owner: type, attributes: str, cause: str) -> Callable[[Callable[..., Any]], None]:
    return lambda change: BUGS.update({change.__name__: (model, owner, attributes, change, cause)})


# -- the LSTM example --------------------------------------------------------------------------------------------------


@bug("lstm", lstm.LSTMEncoder, "reorder_encoder_out", "the encoder's output is not reordered with the rows")
def lstm_encoder_output_not_reordered(old: Any) -> Any:
    return lambda self, out, order: out.index_select(torch.arange(len(order)) % out.num_rows)


@bug("lstm", nn.Dropout, "forward", "dropout or another source of randomness is active in evaluation")
def lstm_dropout_in_evaluation(old: Any) -> Any:
    return lambda self, x: F.dropout(x, 0.1)


@bug("lstm", lstm.LSTMDecoder, "extract_features", "the features of a sentence depend on padding")
def lstm_attends_to_padding(old: Any) -> Any:
    return lambda self, tokens, out, *rest, **options: old(
        self, tokens, replace(out, encoder_padding_mask=None), *rest, **options
    )


@bug("lstm", lstm.LSTMDecoder, "set_state get_state", "a module keeps values of a pass on itself")
def lstm_state_on_the_module(put: Any, get: Any) -> Any:
    return (
        lambda self, state, module_state: None if state is None else setattr(self, "kept", module_state),
        lambda self, state: self.kept if self.positions_seen(state) else None,
    )


@bug("lstm", lstm.LSTMDecoder, "set_state", "a module stores its state under a key of its own")
def lstm_key_of_its_own(old: Any) -> Any:
    return lambda self, state, module_state: None if state is None else state.update(lstm=module_state)


@bug("lstm", lstm.LSTMEncoder, "forward", "a module keeps what it computed for another batch")
def lstm_cache_keyed_by_the_shape(old: Any) -> Any:
    kept: dict[Any, Any] = {}
    return lambda self, tokens, lengths: kept.setdefault((self, tokens.shape), old(self, tokens, lengths))


@bug("lstm", lstm.LSTMEncoder, "forward", "the encoder's features of a sentence depend on padding")
def lstm_encodes_padding(old: Any) -> Any:
    return lambda self, tokens, lengths: old(self, tokens, torch.full_like(lengths, tokens.size(1)))


@bug("lstm", lstm.LSTMDecoder, "extract_features", "the attention that is returned is over other positions")
def lstm_attention_of_another_width(old: Any) -> Any:
    def widened(features: Tensor, weights: Tensor | None) -> Any:
        return features, None if weights is None else F.pad(weights, (3, 0))

    return lambda *args, **options: widened(*old(*args, **options))


@bug("lstm", lstm.LSTMDecoder, "state_key", "copies of a module share a state")
def lstm_key_that_copies_share(old: Any) -> Any:
    keys: list[StateKey] = []

    def state_key(self: Any) -> StateKey:
        keys[:] = keys or [StateKey(self)]
        return keys[0]

    return property(state_key)


@bug("lstm", lstm.LSTMDecoder, "get_state", "a step does not compute")
def lstm_cell_not_stored(old: Any) -> Any:
    return lambda self, state: (found := old(self, state)) and {**found, "cell": torch.zeros_like(found["cell"])}


@bug("lstm", lstm.LSTMDecoder, "output_layer", "something computed from a weight is used after the weight has changed")
def lstm_keeps_a_transposed_weight(old: Any) -> Any:
    def output_layer(self: Any, features: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return features @ self.embed_tokens.weight.t()
        if not hasattr(self, "transposed"):
            self.transposed = self.embed_tokens.weight.detach().t().clone()
        return features @ self.transposed.to(features)

    return output_layer


@bug("lstm", lstm.LSTMDecoder, "__init__ output_layer", "something that the logits depend on is not saved")
def lstm_scale_is_not_a_parameter(build: Any, output_layer: Any) -> Any:
    def init(self: Any, cfg: Any, *rest: Any) -> None:
        build(self, cfg, *rest)
        self.scale = torch.rand(cfg.embed_dim).double() + 0.5

    return init, lambda self, features: output_layer(self, features * self.scale.to(features))


@bug("lstm", Tensor, "softmax", "a parameter does not reach the loss")
def lstm_attention_is_detached(old: Any) -> Any:
    return lambda self, *args, **options: old(self.detach(), *args, **options)


# -- the transformer ---------------------------------------------------------------------------------------------------


@bug("transformer", transformer.TransformerDecoder, "self_attention_mask", "a position sees later target tokens")
def transformer_without_causal_mask(old: Any) -> Any:
    return lambda self, queries, layer: torch.zeros(1, 1, queries.new, queries.seen + queries.new, dtype=torch.float64)


@bug("transformer", MultiheadAttention, "roll_back_state", "a module does not roll back its state")
def transformer_does_not_roll_back(old: Any) -> Any:
    return lambda self, state, *_: state


@bug("transformer", Positions, "forward", "a module does not merge its state")
def transformer_positions_ignore_start_offsets(old: Any) -> Any:
    return lambda self, queries: old(self, replace(queries, start_offsets=None))


@bug("transformer", MultiheadAttention, "forward", "the attention that is returned is not a distribution over")
def transformer_attention_is_a_sum_of_heads(old: Any) -> Any:
    def summed(self: Any, *args: Any, **options: Any) -> Any:
        out, weights = old(self, *args, **options)
        return out, None if weights is None else weights * self.num_heads

    return summed


# -- T5 ----------------------------------------------------------------------------------------------------------------


@bug("t5", t5.T5Decoder, "self_attention_mask", "a mask hides the start token")
def t5_masks_its_start_token(old: Any) -> Any:
    """The start token of T5 is padding."""

    def hiding(self: Any, queries: Any, layer: int) -> Tensor:
        bias = old(self, queries, layer).clone()
        bias[..., 1 - queries.seen :, 0] = -1e9
        return bias

    return hiding


@bug("t5", t5.T5Decoder, "output_layer", "the differences have the size of rounding")
def t5_projects_in_float32(old: Any) -> Any:
    """The order of summation depends on the number of positions, as that of some processors' kernels does."""

    def output_layer(self: Any, features: Tensor) -> Tensor:
        weight, single = self.output_projection.weight.float(), features.float()
        if features.size(1) == 1:
            weight, single = weight.flip(-1), single.flip(-1)
        return F.linear(single, weight).to(features.dtype)

    return output_layer


EACH = [pytest.param(name, marks=pytest.mark.slow if number % 5 else ()) for number, name in enumerate(BUGS)]


@pytest.mark.parametrize("name", EACH)
def test_bugs_are_found_and_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, owner, attributes, change, cause = BUGS[name]
    found = change(*(getattr(owner, attribute) for attribute in attributes.split()))
    for attribute, value in zip(attributes.split(), found if isinstance(found, tuple) else [found], strict=True):
        monkeypatch.setattr(owner, attribute, value)
    torch.manual_seed(0)
    words, build = tiny_dictionary(), lambda: MODELS[model]().double()
    subject = Subject(randomize_(build()), words, len(words), build=build)
    outcomes = list(check(subject, PASSES | STEPPING | WEIGHTS))
    named = diagnose(outcomes, subject)
    assert named.startswith(cause), [f"{o.name}: {o.violation.what}" for o in outcomes if o.violation]
