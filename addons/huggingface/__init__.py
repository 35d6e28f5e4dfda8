"""Folders of Hugging Face, the models on its Hub, and T5Gemma; docs/models.md."""

from seqgen.addons.huggingface.checkpoint import save_pretrained

__all__ = ["save_pretrained"]
