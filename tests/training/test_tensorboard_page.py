"""What TensorBoard shows of a run, in a headless Chromium."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from seqgen.training.run_log import Records
from seqgen.training.validation import Sample

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_shows_curves(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    records = Records(tmp_path / "run", 0, tensorboard=True)
    records.write_config({"model": {"_name": "fconv", "dropout": 0.1}})
    for update in (1, 2, 3):
        records.write("train", update, 1, {"loss": 4.0 / update})
        records.write_gradients(update, {"encoder.layers.0": 1.0})
        records.write_samples(update, [Sample("a", "b", "c")], [(1, 1)])
    records.close()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    board = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path), "--port", str(port)]
    server = subprocess.Popen([*board, "--load_fast=false"], stdout=-3, stderr=-3)
    try:
        _wait(f"http://127.0.0.1:{port}/")
        browser = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=25000"]
        picture, page = tmp_path / "page.png", f"http://127.0.0.1:{port}/"
        window = ["--window-size=1400,1100", f"--user-data-dir={tmp_path}/profile"]
        shot = [*browser, *window, f"--screenshot={picture}", page]
        subprocess.run(shot, check=True, capture_output=True, timeout=120)
        shown = subprocess.run([*browser, *window, "--dump-dom", page], check=True, capture_output=True, timeout=120)
    finally:
        server.terminate()
        server.wait(30)
    from PIL import Image

    with Image.open(picture) as image:
        assert image.size == (1400, 1100)
        assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 100  # not an empty page
    for words in ("train/loss", "train_gradients/encoder.layers.0"):
        assert words in shown.stdout.decode(), words


def _wait(page: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(page, timeout=5).read()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
        else:
            return
    pytest.fail("TensorBoard does not start")
