"""Steps that a GPU replays without Python (``fast.cuda_graphs``); docs/fast-decoding.md."""
