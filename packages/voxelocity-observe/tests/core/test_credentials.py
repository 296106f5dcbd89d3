import pytest

from voxelocity_observe.core.credentials import hide_credentials, without_credentials

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
        ([f"PGPASSWORD={SECRET}", f"SSHPASS={SECRET}"], ["PGPASSWORD=***", "SSHPASS=***"]),
        ([f"dbPassword={SECRET}", f"OPENAI_KEY={SECRET}"], ["dbPassword=***", "OPENAI_KEY=***"]),
        (["--authToken", SECRET, "--clientSecret", SECRET], ["--authToken", "***", "--clientSecret", "***"]),
        ([f"--ssh-key={SECRET}", "--secrets", SECRET], ["--ssh-key=***", "--secrets", "***"]),
        ([f'{{"password": "{SECRET} x", "size": 3}}'], ['{"password": "***", "size": 3}']),
        ([f"https://bob:p@{SECRET}@host/x"], ["https://***@host/x"]),
        ([f"https://bob:p/{SECRET}@host/x"], ["https://***@host/x"]),
        ([f"https://host/x?code={SECRET}&key={SECRET}"], ["https://host/x?code=***&key=***"]),
        ([f"Cookie: session={SECRET}; id={SECRET}"], ["Cookie: ***"]),
        (["-u", f"bob:{SECRET}", "-p", SECRET], ["-u", "bob:***", "-p", "***"]),
        (["bash", "-c", f"export PASSWORD='{SECRET} x y'; run"], ["bash", "-c", "export PASSWORD='***'; run"]),
        (["--connection-string", f"AccountName=x;AccountKey={SECRET};"], ["--connection-string", "***"]),
        ([f"sk-{SECRET}", f"--PASSWORD:{SECRET}"], ["***", "--PASSWORD:***"]),
        (["--password", f"-{SECRET}"], ["--password", "***"]),
        ([f"TOKENS={SECRET}", f"secretKey: {SECRET}"], ["TOKENS=***", "secretKey: ***"]),
        ([f"AWS_ACCESS_KEY_ID={SECRET}"], ["AWS_ACCESS_KEY_ID=***"]),
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
        "http://host:8080/a@b",
        "https://host/sub-01@ses/x.nii.gz",
        "network.widths=[32, 64]",
        '{"spacing": [1, 1, 3], "name": "bypass"}',
        "data.augment.effects=[{factory: 'my:Spike'}]",
        "http://host/x?page=2&size=3",
        "C:/data/keys/scan.nii",
        "skull-stripped-brain",
    ],
)
def test_what_only_looks_alike_is_kept(word):
    assert without_credentials([word]) == [word]


def test_a_port_is_no_password():
    assert without_credentials(["docker", "-p", "8080", "-u", "ann"]) == ["docker", "-p", "8080", "-u", "ann"]


def test_a_message_that_repeats_an_address_is_cleaned_too():
    text = f"mlflow: cannot reach http://bob:{SECRET}@host:9 (refused)"
    assert hide_credentials(text) == "mlflow: cannot reach http://***@host:9 (refused)"
