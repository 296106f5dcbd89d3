import pytest

from voxelocity.core.credentials import hide_credentials, without_credentials

SECRET = "S3CRETPW"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--log", f"mlflow:http://bob:{SECRET}@127.0.0.1:9"], ["--log", "mlflow:http://***@127.0.0.1:9"]),
        ([f"https://{SECRET}@github.com/a/b"], ["https://***@github.com/a/b"]),
        ([f"https://host/path?size=a&token={SECRET}&x=1"], ["https://host/path?size=a&token=***&x=1"]),
        ([f"https://host/path?sv=2024&sig={SECRET}"], ["https://host/path?sv=2024&sig=***"]),
        ([f"--token={SECRET}", "--epochs=3"], ["--token=***", "--epochs=3"]),
        ([f"--password=a;b c&{SECRET}"], ["--password=***"]),
        (["--password", SECRET, "--epochs", "3"], ["--password", "***", "--epochs", "3"]),
        (["--hf-token", SECRET], ["--hf-token", "***"]),
        (["--token", "--verbose", "keep"], ["--token", "--verbose", "keep"]),
        ([f"WANDB_API_KEY={SECRET}", "python", "train.py"], ["WANDB_API_KEY=***", "python", "train.py"]),
        ([f"AWS_SECRET_ACCESS_KEY={SECRET}"], ["AWS_SECRET_ACCESS_KEY=***"]),
        ([f"api_key: {SECRET}"], ["api_key: ***"]),
        ([f"Authorization: Bearer {SECRET}"], ["Authorization: Bearer ***"]),
        ([f"bob:{SECRET}@host.org"], ["***@host.org"]),
    ],
)
def test_what_is_secret_is_hidden_and_the_rest_is_kept(words, expected):
    assert without_credentials(words) == expected
    assert SECRET not in " ".join(without_credentials(words))


@pytest.mark.parametrize(
    "word",
    [
        "--set",
        "data.batch_size=4",
        "train.keep_checkpoints=2",
        "--tokenizer=bert",
        "--keyboard=us",
        "scan@3T.nii.gz",
        "s3://bucket/key/file",
        "mlflow:http://127.0.0.1:5000",
        "--author=ann",
        "--compass=north",
        "loss.sigma=3",
        "signals=2",
    ],
)
def test_what_only_looks_alike_is_kept(word):
    assert without_credentials([word]) == [word]


def test_a_message_that_repeats_an_address_is_cleaned_too():
    text = f"mlflow: cannot reach http://bob:{SECRET}@host:9 (refused)"
    assert hide_credentials(text) == "mlflow: cannot reach http://***@host:9 (refused)"
