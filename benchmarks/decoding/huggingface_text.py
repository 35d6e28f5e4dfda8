"""Translates a file with Hugging Face's ``generate``, as a simple script does; needs torch and transformers.

python -m benchmarks.decoding.huggingface_text FOLDER INPUT OUTPUT [--beam 5] [--batch 64] [--sort]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import transformers


def main() -> None:
    """Decode a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=128, help="longest output in tokens")
    parser.add_argument("--sort", action="store_true", help="decode lines sorted by length")
    parser.add_argument("--format", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder)
    model = transformers.T5ForConditionalGeneration.from_pretrained(options.folder)
    model = model.to(options.device, getattr(torch, options.format)).eval()
    lines = options.input.read_text(encoding="utf-8").split("\n")[:-1]
    order = (
        sorted(range(len(lines)), key=lambda i: len(tokenizer(lines[i]).input_ids))
        if options.sort
        else range(len(lines))
    )
    outputs = [""] * len(lines)
    for start in range(0, len(lines), options.batch):
        rows = list(order)[start : start + options.batch]
        inputs = tokenizer([lines[row] for row in rows], return_tensors="pt", padding=True).to(options.device)
        with torch.inference_mode():
            written = model.generate(
                **inputs, num_beams=options.beam, max_new_tokens=options.length, do_sample=False, early_stopping=False
            )
        for row, text in zip(rows, tokenizer.batch_decode(written, skip_special_tokens=True), strict=True):
            outputs[row] = text
    options.output.write_text("".join(f"{text}\n" for text in outputs), encoding="utf-8")


if __name__ == "__main__":
    main()
