"""Export: ONNX and CTranslate2; docs/export.md."""
