"""The built-in models; each file registers one, and is imported when one of its names is asked for."""

from seqgen.checkpoints.loaders import declare_checkpoint_loader
from seqgen.checkpoints.sources import declare_source
from seqgen.registry import MODELS

if __name__ != "seqgen.models":
    raise ImportError(f"import this package as 'seqgen.models', not as {__name__!r}, or its components register twice")

for name in ("fconv", "llama", "transformer", "transformer_lm", "t5"):
    MODELS.declare(name, f"seqgen.models.{name}")
MODELS.declare("transformer_ssru", "seqgen.addons.marian.ssru")
MODELS.declare("t5gemma", "seqgen.addons.huggingface.t5gemma_model")
MODELS.declare("t5gemma2", "seqgen.addons.huggingface.t5gemma2_model")

declare_checkpoint_loader(
    "fairseq checkpoint", lambda path: path.suffix == ".pt" and path.is_file(), "seqgen.addons.fairseq.loader"
)
declare_checkpoint_loader(
    "Hugging Face folder", lambda path: (path / "config.json").is_file(), "seqgen.addons.huggingface.checkpoint"
)
declare_checkpoint_loader(
    "Marian model",
    lambda path: (
        (path.suffix in (".npz", ".bin") and path.is_file())
        or any(any(path.glob(names)) for names in ("*decoder.yml", "*intgemm*.bin"))
    ),
    "seqgen.addons.marian.loader",
)
declare_source("hf", "seqgen.addons.huggingface.hub")
declare_source("firefox", "seqgen.addons.firefox.download")
