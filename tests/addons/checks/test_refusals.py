"""What a user is told of checks that cannot be made."""

from pathlib import Path
from unittest.mock import Mock

from seqgen.addons.checks.kinds import ModelCheckConfig, model_subject, small_transformer
from seqgen.addons.checks.subject import Ids
from seqgen.data.dictionary import Dictionary
from tests.refusals import refusals

CACHE = Path(__file__).parents[3] / "examples" / "extending" / "cache.py"
OWN = f"check common.user_dir={CACHE} model=transformer_tiny "

test_components = refusals(
    ("check serach=beam", "there is no check 'serach=beam' (did you mean 'search'?); give"),
    ("check search=beem", "did you mean 'beam'?"),
    ("check search=beam processor=checked_top_k", "search and processor are two components; check them one at a time"),
    ("check search=beam path=runs/a", "runs/a: there is no such file or folder"),
    ("check search=beam generation.beam=3", "generation.beam: the check sets this key itself"),
    ("check search=beam processor.variety.weight=2", "generation.processors does not name its logits processor"),
    ("check search=beam common.device=cuda", "the checks run on the CPU"),
    ("check task=translation", "task.source_lang is missing"),
    ("check task=decoding", "task=decoding is for decoding and has no data to check"),
)


def sources(folder: Path, text: str) -> None:
    (folder / "in.txt").write_text(text)
    model_subject(ModelCheckConfig(model=small_transformer(), input=str(folder / "in.txt")))


test_sources = refusals(
    ("check search=beam input=missing.txt", "there is no file missing.txt"),
    (lambda tmp_path: sources(tmp_path, ""), "in.txt: the file has no line; write one source in each line"),
    (lambda tmp_path: sources(tmp_path, "w " * 2000), "in.txt: a line has 2001 tokens, but the model reads 1024"),
)

test_models = refusals(
    (lambda: Ids.of(Mock(encoder=Mock(inputs=("x",))), Dictionary(), 9), "Mock reads columns, for which the checks"),
    ("check +model=fconv_tiny", "did you mean 'model'?"),
    ("check model=fconv_tiny path=runs/a", "set either model=NAME"),
    ("check path=missing", "missing"),
    ("check model=fconv_tiny model.dropuot=0", "did you mean 'model.dropout'?"),
    ("check model=fconv_tiny reading.dictionary=dict.txt", "reading.KEY applies only to path"),
    ("check model=fconv_tiny model.max_target_positions=12", "the checks need 40"),
    ("check model=fconv_tiny 'model.decoder_attention=[False] * 3'", "at least one decoder layer"),
    (OWN + "cache=BFloat16Cach", "BFloat16Cach: the name is unknown (did you mean 'BFloat16Cache'?)"),
    ("check model=fconv_tiny cache=GrowingCache", "the decoder has no attention"),
)
