"""The names for the author of a component: ``from seqgen.extend import Search, option, register_search``.

The groups are those of docs/reference.md, which has the arguments of each name. Users of models import from ``seqgen``,
those who examine models and decodes from ``seqgen.inspection`` and ``seqgen.addons.traces``, and those who derive a
task from ``DenoisingTask`` from ``seqgen.addons.mixtures``; every other module is private and may move. A name is
loaded when it is used.
"""

from typing import TYPE_CHECKING

from seqgen.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from seqgen.checkpoints.loaders import (
        DecodingConfig,
        DecodingTask,
        ForeignConfig,
        LoadedModel,
        Placement,
        register_checkpoint_loader,
    )
    from seqgen.checkpoints.loading import load_base, load_model
    from seqgen.checkpoints.model_weights import build_with_weights, fuse_projections
    from seqgen.checkpoints.run_config import flatten, read_yaml
    from seqgen.checkpoints.torch_file import read_torch_file
    from seqgen.cli.command import log, run, set_up_device
    from seqgen.cli.output import check_output
    from seqgen.config import BaseConfig, CommonConfig, GenerationConfig, ReadingConfig, TrainConfig, option
    from seqgen.config.added_options import register_options
    from seqgen.config.values import split_argument, to_dict
    from seqgen.core.backpointers import BackPointers
    from seqgen.core.beam_search import BeamSearch, Greedy
    from seqgen.core.candidates import Candidates, best_continuations, gather_beams
    from seqgen.core.combinations import Combination, ProbabilityMean
    from seqgen.core.component import (
        ATTENTION,
        FORBIDDEN,
        HIDDEN_STATES,
        LAYER_LOGITS,
        MEMBER_LOGITS,
        MEMBER_LPROBS,
        BatchInfo,
        Component,
    )
    from seqgen.core.context import LayerLogits, StepContext, StepOutputs
    from seqgen.core.decoder import Decoder, IncrementalDecoder
    from seqgen.core.encoder import Encoder
    from seqgen.core.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        DecodingError,
        ResourceError,
        UserError,
        nearest,
        shown,
    )
    from seqgen.core.finished import EachRow, FinishedHypotheses, Ranking
    from seqgen.core.incremental_state import StateDict, StatefulModule
    from seqgen.core.member import Member, MemberOutput, MemberSpec, check_features
    from seqgen.core.model import EncoderDecoderModel
    from seqgen.core.observers import Forbidden, Observer, Outcome, StepRecord
    from seqgen.core.processors import LogitsProcessor
    from seqgen.core.rules import StoppingRule
    from seqgen.core.scores import Scores, own_beams
    from seqgen.core.search import Search
    from seqgen.core.sequence_generator import SequenceGenerator
    from seqgen.core.session import Session
    from seqgen.core.setup import DecodingRequest, DecodingSetup
    from seqgen.core.structures import Batch, DecoderOut, EncoderOut, Hypothesis, Source, map_tensors
    from seqgen.data.dictionary import Dictionary, VocabularyMap
    from seqgen.data.noising import NoiseTokens, Objective, replace_spans, span_counts, span_mask
    from seqgen.data.pair_dataset import Example, PairDataset, Side, pad_rows
    from seqgen.data.text import ParallelFiles, find_files, find_parallel, read_lines
    from seqgen.data.tokenizers.base import (
        Tokenizer,
        WhitespaceTokenizer,
        load_tokenizer,
        register_tokenizer,
        save_tokenizer,
        write_settings,
    )
    from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer, save_pretrained_tokenizer
    from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer, read_model
    from seqgen.data.vocabularies import Vocabularies
    from seqgen.decoding.building import Resources
    from seqgen.decoding.combinations import Fusion, LogProbabilityMean, MeanConfig
    from seqgen.decoding.fairseq_arguments import fairseq_generator
    from seqgen.decoding.options import build_setup
    from seqgen.decoding.planned_member import PlannedMember
    from seqgen.decoding.processors.length import ForceEndAtMaximum, MinimumLength
    from seqgen.decoding.processors.prefix_trie import PrefixConstraint
    from seqgen.decoding.processors.tokens import Forbid, ForcePrefix
    from seqgen.decoding.scorer import SequenceScorer
    from seqgen.decoding.search.constrained import ConstrainedSearch
    from seqgen.decoding.search.diverse import DiverseBeamSearch
    from seqgen.decoding.search.sampling import TOKEN, RandomSearch, Sampling, draw, drawn_scores, uniform
    from seqgen.decoding.speculative.verification import (
        Draft,
        Drafter,
        Drafts,
        LookAhead,
        SpeculativeSearch,
        SpeculativeSession,
    )
    from seqgen.decoding.streaming import Streamer
    from seqgen.metrics import Texts, TextScore, register_metric
    from seqgen.models.huggingface.checkpoint import save_pretrained
    from seqgen.models.transformer import TransformerConfig, TransformerDecoder, TransformerEncoder, TransformerModel
    from seqgen.modules.cached_weight import CachedWeight, change_class
    from seqgen.modules.dropout import Dropout
    from seqgen.modules.inspection import record_passes
    from seqgen.modules.kv_cache.growing import GrowingCache
    from seqgen.modules.kv_cache.protocol import Attended, KeysAndValues, KeyValueCache
    from seqgen.modules.linear import Linear
    from seqgen.modules.masks import QueryPositions
    from seqgen.modules.multihead_attention import MultiheadAttention
    from seqgen.modules.positions import LearnedPositions, RotaryPositions
    from seqgen.modules.rms_norm import RMSNorm
    from seqgen.registry import (
        MODELS,
        register_combination,
        register_criterion,
        register_feature,
        register_logits_processor,
        register_lr_scheduler,
        register_member_source,
        register_model,
        register_observer,
        register_optimizer,
        register_reranker,
        register_search,
        register_stopping_rule,
        register_task,
        register_utility,
    )
    from seqgen.system.downloads import watch_download
    from seqgen.system.files import disk_errors, new_file, new_folder, write_atomically
    from seqgen.system.reading import parse_json, read_bytes
    from seqgen.task import Task
    from seqgen.tasks.number_names import number_names, split_numbers
    from seqgen.tasks.raw_text import cache_folder, check_split
    from seqgen.tasks.translation import ParallelTextConfig, ParallelTextTask, TranslationConfig, TranslationTask
    from seqgen.text.confidence.features import Feature
    from seqgen.text.input_line import InputLine
    from seqgen.text.languages import TextModel
    from seqgen.text.line_stages import LineOrder, LineStage, register_line_stage
    from seqgen.text.reranking import (
        Bleu,
        Chrf,
        Matrix,
        NgramUtility,
        Reranker,
        Utility,
        count_ngrams,
        expected_utilities,
        utility_from_config,
    )
    from seqgen.text.results import Computed, TextHypothesis, Translation
    from seqgen.text.sources import MemberSource
    from seqgen.text.translator import ModelInMemory
    from seqgen.text.word_streaming import WordStreamer
    from seqgen.training.criteria import Criterion, CriterionOut, TargetPositions, target_logits
    from seqgen.training.cross_entropy import cross_entropy
    from seqgen.training.lr_schedulers import InverseSqrtSchedule, LRScheduler
    from seqgen.training.optimizers import SGD
    from seqgen.training.sequence_criterion import Rescored, SequenceConfig, SequenceCriterion, decode_option

# Declaring a component
__all__ = ["BaseConfig", "CheckpointError", "CommonConfig", "ConfigError", "DataError", "DecodingError"]
__all__ += ["GenerationConfig", "ReadingConfig", "ResourceError", "TrainConfig", "UserError", "nearest", "option"]
__all__ += ["register_options", "shown"]
# All decoding components
__all__ += ["ATTENTION", "FORBIDDEN", "HIDDEN_STATES", "LAYER_LOGITS", "MEMBER_LOGITS", "MEMBER_LPROBS", "BatchInfo"]
__all__ += ["Candidates", "Component", "Hypothesis", "LayerLogits", "Resources", "StepContext", "StepOutputs"]
__all__ += ["best_continuations", "gather_beams", "map_tensors"]
# Search strategies
__all__ += ["TOKEN", "BeamSearch", "ConstrainedSearch", "DiverseBeamSearch", "Greedy", "RandomSearch", "Sampling"]
__all__ += ["Search", "draw", "drawn_scores", "own_beams", "register_search", "uniform"]
# Logits processors
__all__ += ["Forbid", "ForceEndAtMaximum", "ForcePrefix", "LogitsProcessor", "MinimumLength", "PrefixConstraint"]
__all__ += ["register_logits_processor"]
# Combinations and members
__all__ += ["Combination", "Fusion", "LogProbabilityMean", "MeanConfig", "MemberSource", "MemberSpec"]
__all__ += ["PlannedMember", "ProbabilityMean", "register_combination", "register_member_source"]
# Stopping rules and observers
__all__ += ["Forbidden", "Observer", "Outcome", "StepRecord", "StoppingRule", "register_observer"]
__all__ += ["register_stopping_rule"]
# Decoding loops
__all__ += ["BackPointers", "DecodingRequest", "DecodingSetup", "EachRow", "FinishedHypotheses", "Member"]
__all__ += ["MemberOutput", "Ranking", "Scores", "SequenceGenerator", "SequenceScorer", "Session", "Streamer"]
__all__ += ["build_setup", "check_features", "fairseq_generator"]
# Speculative decoding
__all__ += ["Draft", "Drafter", "Drafts", "LookAhead", "SpeculativeSearch", "SpeculativeSession"]
# From lines to lines
__all__ += ["Bleu", "Chrf", "Feature", "Matrix", "ModelInMemory", "NgramUtility", "Reranker", "TextHypothesis"]
__all__ += ["TextModel", "TextScore", "Texts", "Translation", "Utility", "WordStreamer", "count_ngrams"]
__all__ += ["expected_utilities", "register_feature", "register_metric", "register_reranker", "register_utility"]
__all__ += ["Computed", "InputLine", "LineOrder", "LineStage", "register_line_stage", "utility_from_config"]
# Models
__all__ += ["MODELS", "Attended", "CachedWeight", "Decoder", "DecoderOut", "Dropout", "Encoder"]
__all__ += ["EncoderDecoderModel", "EncoderOut", "GrowingCache", "IncrementalDecoder", "KeyValueCache"]
__all__ += ["KeysAndValues", "LearnedPositions", "Linear", "MultiheadAttention", "QueryPositions", "RMSNorm"]
__all__ += ["RotaryPositions", "Source", "StateDict", "StatefulModule", "TransformerConfig", "TransformerDecoder"]
__all__ += ["TransformerEncoder", "TransformerModel", "Vocabularies", "change_class", "record_passes", "register_model"]
__all__ += ["save_pretrained"]
# Tasks, data and tokenizers
__all__ += ["Batch", "Dictionary", "Example", "NoiseTokens", "Objective"]
__all__ += ["PairDataset", "ParallelFiles", "ParallelTextConfig", "ParallelTextTask", "SentencePieceTokenizer"]
__all__ += ["Side", "Task", "Tokenizer", "TranslationConfig", "TranslationTask", "VocabularyMap"]
__all__ += ["WhitespaceTokenizer", "cache_folder", "check_split", "find_files", "find_parallel"]
__all__ += ["load_pretrained_tokenizer", "load_tokenizer", "number_names", "pad_rows", "read_lines", "read_model"]
__all__ += ["register_task", "register_tokenizer", "replace_spans", "save_pretrained_tokenizer", "save_tokenizer"]
__all__ += ["span_counts", "span_mask", "split_numbers", "write_settings"]
# Training
__all__ += ["SGD", "Criterion", "CriterionOut", "InverseSqrtSchedule", "LRScheduler", "Rescored", "SequenceConfig"]
__all__ += ["SequenceCriterion", "TargetPositions", "cross_entropy", "decode_option", "register_criterion"]
__all__ += ["register_lr_scheduler", "register_optimizer", "target_logits"]
# Checkpoints of other toolkits
__all__ += ["DecodingConfig", "DecodingTask", "ForeignConfig", "LoadedModel", "Placement", "build_with_weights"]
__all__ += ["flatten", "fuse_projections", "load_base", "load_model", "read_bytes", "read_torch_file", "read_yaml"]
__all__ += ["register_checkpoint_loader"]
# Commands
__all__ += ["check_output", "disk_errors", "log", "new_file", "new_folder", "parse_json", "run", "set_up_device"]
__all__ += ["split_argument", "to_dict", "watch_download", "write_atomically"]

__getattr__, __dir__ = lazy_names(__name__)
