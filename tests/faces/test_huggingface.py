"""convert --format parquet, read by datasets, and trained on by transformers and TRL. `make faces` runs this."""

import random

import pytest

datasets = pytest.importorskip("datasets")

import shardmill  # noqa: E402
from feeding import milled, texts_of  # noqa: E402
from shardmill import Target, Windows, convert  # noqa: E402

torch = pytest.importorskip("torch")


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return milled(tmp_path, texts_of(random.Random(1), 300))


def tiny():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=50257, n_positions=64, n_embd=16, n_layer=1, n_head=1)
    return transformers.GPT2LMHeadModel(config)


def test_datasets_read_each_document_as_a_row(out, tmp_path):
    convert(out, Target(output=tmp_path / "rows", format="parquet", shard_tokens=5000))
    cache = str(tmp_path / "cache")
    by_folder = datasets.load_dataset(str(tmp_path / "rows"), cache_dir=cache)["train"]
    by_name = datasets.load_dataset("parquet", data_files=f"{tmp_path}/rows/train-*.parquet", cache_dir=cache)["train"]
    documents = [document.tolist() for document in shardmill.open(out)["train"].documents()]
    assert by_folder["input_ids"][:] == by_name["input_ids"][:] == documents
    assert by_folder.column_names == ["input_ids", "attention_mask", "labels"], "exactly what Axolotl wants"


def test_the_trainer_of_transformers_trains_on_rows_of_one_length(out, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    convert(out, Target(output=tmp_path / "rows", format="parquet", sample_tokens=64))
    files = f"{tmp_path}/rows/train-*.parquet"
    rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    arguments = transformers.TrainingArguments(
        str(tmp_path / "run"), max_steps=3, per_device_train_batch_size=4, report_to=[], use_cpu=True
    )
    trainer = transformers.Trainer(tiny(), arguments, train_dataset=rows)
    assert 0 < trainer.train().training_loss < 20


def test_the_trainer_of_transformers_reads_windows(out, tmp_path):
    """docs/training.md: its models shift labels themselves."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from test_torch import lines_for

    scope = {"rows": Windows(out, length=64)}
    exec(lines_for("trainer"), scope)
    arguments = transformers.TrainingArguments(
        str(tmp_path / "run"), max_steps=3, per_device_train_batch_size=4, report_to=[], use_cpu=True
    )
    trainer = transformers.Trainer(tiny(), arguments, train_dataset=scope["Rows"]())
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["input_ids"].shape == (4, 64) and (batch["labels"] == batch["input_ids"]).all()
    assert 0 < trainer.train().training_loss < 20


def test_trl_packs_documents_itself(out, tmp_path):
    trl = pytest.importorskip("trl")
    convert(out, Target(output=tmp_path / "rows", format="parquet"))
    files = f"{tmp_path}/rows/train-*.parquet"
    rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    arguments = trl.SFTConfig(
        str(tmp_path / "run"), max_steps=2, per_device_train_batch_size=2, max_length=64, report_to=[], use_cpu=True
    )
    import transformers
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({f"{i}": i for i in range(50257)}, unk_token="0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="50256", pad_token="50256")
    trainer = trl.SFTTrainer(tiny(), arguments, train_dataset=rows, processing_class=tokenizer)
    assert 0 < trainer.train().training_loss < 20
