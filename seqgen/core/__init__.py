# ruff: noqa: F401
"""What decoding is: models, the search, and the loop that drives both. It imports PyTorch and itself, and nothing else.

::

    SequenceGenerator.generate   one Session per call, whose step has six parts:
      (1) member, scoring        members score the next token; a combination merges, processors change the scores
      (2) search                 a strategy chooses candidates
      (3) rules                  some candidates end
      (4) finished, rules        some of these become finished hypotheses; of the others, the best continue
      (5) Session.compact        finished sentences leave the batch
      (6) Session.advance        tokens, scores, decoder states and components follow the beams

Strategies, processors, combinations, stopping rules and observers share ``component.Component`` and see the step
through ``context.StepContext``. What stands above the core changes it by the fields of ``setup.DecodingSetup``.
"""

from typing import TYPE_CHECKING

from seqgen.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from seqgen.core.backpointers import BackPointers
    from seqgen.core.beam_search import BeamSearch, Greedy
    from seqgen.core.candidates import Candidates, best_continuations, gather_beams
    from seqgen.core.combinations import Combination, Mean, ProbabilityMean
    from seqgen.core.component import (
        ATTENTION,
        FORBIDDEN,
        HIDDEN_STATES,
        LAYER_LOGITS,
        MEMBER_LOGITS,
        MEMBER_LPROBS,
        BatchInfo,
        Component,
        Composite,
    )
    from seqgen.core.context import LayerLogits, StepContext, StepOutputs
    from seqgen.core.contract import ContractError
    from seqgen.core.decoder import Decoder, IncrementalDecoder
    from seqgen.core.encoder import Encoder
    from seqgen.core.ensemble import Ensemble
    from seqgen.core.errors import CheckpointError, ConfigError, DataError, DecodingError, UserError
    from seqgen.core.finished import BestFinished, EachRow, FinishedHypotheses, FirstFinished, Ranking
    from seqgen.core.incremental_state import IncrementalState, ModuleState, StateDict, StatefulModule
    from seqgen.core.member import FastPaths, Member, MemberOutput, MemberSpec, check_features
    from seqgen.core.model import EncoderDecoderModel
    from seqgen.core.observers import Forbidden, Observer, Outcome, StepRecord
    from seqgen.core.processors import LogitsProcessor
    from seqgen.core.rules import Rules, StoppingRule
    from seqgen.core.scores import Scores, own_beams
    from seqgen.core.scoring import Scoring
    from seqgen.core.search import Search
    from seqgen.core.sequence_generator import SequenceGenerator
    from seqgen.core.session import Session
    from seqgen.core.setup import BatchStage, DecodingRequest, DecodingSetup, Limits, Setup
    from seqgen.core.structures import Batch, DecoderOut, EncoderOut, Hypothesis, Source, map_tensors

__getattr__, __dir__ = lazy_names(__name__)
