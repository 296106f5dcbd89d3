"""A data set and a cache on a real S3 server of this machine: `pip install 'moto[server]' s3fs`, which the development
environment leaves out, as their AWS libraries change every day."""

import shutil
import socket
import subprocess
import time

import numpy as np
import pytest

from voxelocity.core import staging
from voxelocity.data.cache import DiskTier
from voxelocity.data.decode import read_case
from voxelocity.data.source import open_cases
from voxelocity.testing.tier_contract import KEY, assert_same, example_volume
from voxelocity_observe.core.errors import DatasetError

s3fs = pytest.importorskip("s3fs")
_SERVER = shutil.which("moto_server")


@pytest.fixture
def bucket(tiny_msd, tmp_path, monkeypatch):
    """A bucket with the tiny data set."""
    if _SERVER is None:
        pytest.skip("needs moto_server: pip install 'moto[server]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(staging, "_stages", {})
    s3fs.S3FileSystem.clear_instance_cache()
    server = subprocess.Popen(
        [_SERVER, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(200):
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        files = s3fs.S3FileSystem()
        files.mkdir("scans")
        files.put(str(tiny_msd), "scans/Task99", recursive=True)
        yield "s3://scans/Task99"
    finally:
        server.terminate()
        server.wait()
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.nightly
def test_a_data_set_in_a_bucket_has_the_voxels_of_the_local_one(bucket, tiny_msd):
    found, wanted = open_cases(bucket), open_cases(tiny_msd)
    assert [ref.case_id for ref in found] == [ref.case_id for ref in wanted]
    for found_case, other in zip(found, wanted, strict=True):
        got = read_case(found_case, label_values=found.label_values)
        here = read_case(other, label_values=wanted.label_values)
        assert np.array_equal(got.image, here.image)
        assert np.array_equal(got.label, here.label)
    with pytest.raises(DatasetError, match="bucket does not exist"):
        open_cases("s3://nothing/Task99")


@pytest.mark.nightly
def test_a_cache_in_a_bucket_is_found_by_another_machine(bucket, tmp_path):
    url = bucket.replace("Task99", "cache")
    DiskTier(tmp_path / "one", url=url).put(KEY, example_volume())
    other = DiskTier(tmp_path / "other", url=url)
    assert other.keys() == [KEY]
    assert_same(other.get(KEY), example_volume())
    other.drop(KEY)
    assert DiskTier(tmp_path / "third", url=url).get(KEY) is None
