"""Data sets on servers: the same cases and voxels as on this disk, whatever the connection does."""

import errno
import http.server
import json
import os
import shutil
import threading
import time
import warnings
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest

from shared.limits import HANGS_S
from voxelocity.core import staging
from voxelocity.core.remote import ContentError, _nearness, local_name, remote_url
from voxelocity.data.decode import read_case, read_header
from voxelocity.data.source import open_cases, remote
from voxelocity.data.source.remote import open_mirror
from voxelocity.data.source.server_listing import RemoteFile
from voxelocity_observe.core.errors import DatasetError, ScanError


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder by ranges, without an index, and has faults.

    Attributes:
        faults: by name of a file, what happens to the next requests for its content.
        sent: names and ranges of all requests for content.
        has_md5: whether it names the MD5 of files.
        tag: in place of each MD5.
        leads_to: where requests for scans are redirected, if that is not "".
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.has_md5, self.tag, self.leads_to = folder, True, "", ""
        self.faults: dict[str, list[str]] = {}
        self.sent: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


_STATUS = {"error": 503, "refusal": 403, "rejection": 400, "gone": 410, "missing server": 501}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self, *, has_body: bool) -> None:
        if self.server.leads_to and self.path.endswith(".gz"):
            self.send_response(302)
            self.send_header("Location", self.server.leads_to)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        place = self.server.folder / self.path.lstrip("/")
        if not place.is_file():
            self.send_error(404)
            return
        content, wanted = place.read_bytes(), self.headers.get("Range", "")
        faults = self.server.faults.get(place.name, []) if has_body else []
        fault = faults.pop(0) if faults else ""
        tag = self.server.tag or md5(content, usedforsecurity=False).hexdigest()
        if fault in _STATUS:
            self.send_error(_STATUS[fault])
            return
        part = content
        if wanted and fault != "all":
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = content[int(first) : int(last) + 1 if last else None]
        if has_body:
            self.server.sent.append((place.name, wanted))
        if fault == "other":
            part = bytes(len(part))
        if fault == "login":
            part = b"<!DOCTYPE html><title>Log in</title>".ljust(len(part))
        self.send_response(206 if part is not content else 200)
        if part is not content:
            self.send_header("Content-Range", f"bytes {wanted.removeprefix('bytes=')}/{len(content)}")
        short = len(part) // 2 if fault == "short" else len(part)
        self.send_header("Content-Length", str(short if has_body else len(content)))
        self.send_header("Accept-Ranges", "bytes")
        if self.server.has_md5:
            self.send_header("ETag", f'"{tag}"')
        self.end_headers()
        if fault == "slow":
            time.sleep(0.3)
        if has_body:
            self.wfile.write(part[: len(part) // 2 if fault == "cut" else short])
        if fault == "cut":
            self.close_connection = True


@pytest.fixture
def server(own_msd):
    with Server(own_msd) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(staging, "_stages", {})
    return tmp_path / "cache" / "voxelocity" / "remote"


def opened(url, **options):
    waits = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        root = open_mirror(url, sleep=waits.append, **options)
    return open_cases(root), waits, caught


LABEL_VALUES = (0, 1, 2)


def assert_same(*refs):
    """Two cases have the same voxels on the same grid."""
    one, other = (read_case(ref, label_values=LABEL_VALUES) for ref in refs)
    assert np.array_equal(one.image, other.image)
    assert np.array_equal(one.label, other.label)
    assert one.grid == other.grid


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/a b", "s3://bucket/a b"),
        (Path("s3://bucket/Task04"), "s3://bucket/Task04"),
        ("https:/host/x.csv", "https://host/x.csv"),
        ("/data/Task04", ""),
        ("Task04", ""),
        ("c:/data", ""),
        ("file:///data", ""),
    ],
)
def test_a_url_is_recognized_even_as_a_path(text, url):
    assert remote_url(text) == url


def test_a_remote_data_set_has_the_cases_and_voxels_of_the_local_one(server, own_msd):
    wanted = open_cases(own_msd)
    found = open_cases(server.url)
    assert [ref.case_id for ref in found] == [ref.case_id for ref in wanted]
    assert (found.labels, found.channels, found.layout) == (wanted.labels, wanted.channels, wanted.layout)
    assert {name for name, _ in server.sent} == {"dataset.json"}
    assert read_header(found.refs[0].images[0]).grid == read_header(wanted.refs[0].images[0]).grid
    for found_case, other in zip(found, wanted, strict=True):
        assert_same(found_case, other)
    num_sent = len(server.sent)
    read_case(found.refs[0], label_values=LABEL_VALUES)
    assert len(server.sent) == num_sent, "kept"


def test_a_mirror_that_was_made_before_is_opened_by_its_path_and_follows_changes(server, own_msd, monkeypatch):
    first = open_cases(server.url)
    root = first.root
    before = os.stat(first.refs[0].images[0])
    read_case(first.refs[0], label_values=LABEL_VALUES)
    # As in another process.
    monkeypatch.setattr(staging, "_stages", {})
    again = open_cases(root)
    assert again.refs == first.refs
    assert os.stat(first.refs[0].images[0]).st_ctime_ns == before.st_ctime_ns, "keys of caches stay"
    read_case(again.refs[0], label_values=LABEL_VALUES)
    shutil.copy(own_msd / "imagesTr" / "case_3.nii.gz", own_msd / "imagesTr" / "case_0.nii.gz")
    assert_same(open_cases(server.url).refs[0], open_cases(own_msd).refs[0])
    assert os.stat(first.refs[0].images[0]).st_ctime_ns != before.st_ctime_ns


@pytest.mark.parametrize("fault", ["error", "cut", "short", "slow", "all", "other"])
def test_a_fault_of_the_connection_costs_waiting_and_nothing_else(server, own_msd, fault, monkeypatch):
    monkeypatch.setattr(remote, "_CHUNK_BYTES", 5000)
    cases, waits, _ = opened(server.url)
    ref = cases.refs[0]
    server.faults[ref.images[0].name] = [fault, "", fault]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_same(ref, open_cases(own_msd).refs[0])
    assert not server.faults[ref.images[0].name]
    if fault in ("error", "cut", "other"):
        assert waits
        assert waits == sorted(waits)
        (told,) = [warning for warning in caught if "trying again" in str(warning.message)]
        assert ref.images[0].name in str(told.message)


def test_a_download_continues_where_it_was_cut(server, monkeypatch):
    monkeypatch.setattr(remote, "_CHUNK_BYTES", 5000)
    cases, _, _ = opened(server.url)
    name = cases.refs[0].images[0].name
    server.faults[name] = ["", "", "cut"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read_header(cases.refs[0].images[0])
    ranges = [int(wanted.removeprefix("bytes=").partition("-")[0]) for sent, wanted in server.sent if sent == name]
    assert ranges[:4] == [0, 5000, 10_000, 10_000]


def test_of_a_large_file_a_header_needs_the_beginning_alone(server, own_msd, monkeypatch):
    monkeypatch.setattr(remote, "_SMALL_BYTES", 100)
    monkeypatch.setattr(remote, "_START_BYTES", 600)
    cases, _, _ = opened(server.url)
    first, second = cases.refs[:2]
    broken, whole = first.images[0], second.images[0]
    server.faults[broken.name] = ["short", "other"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for ref in (first, second, second):
            header, wanted = (read_header(path) for path in (ref.images[0], own_msd / "imagesTr" / ref.images[0].name))
            assert (header.grid, header.dtype, header.num_bytes) == (wanted.grid, wanted.dtype, wanted.num_bytes)
    ranges = [part for name, part in server.sent if name == broken.name]
    assert ranges[:2] == ["bytes=0-599"] * 2, "too little is asked for again"
    assert len(ranges) == 3, "what is no header comes again as a whole, whose checksum is known"
    assert [part for name, part in server.sent if name == whole.name] == ["bytes=0-599"]
    assert_same(second, open_cases(own_msd).refs[1])


def test_files_come_ahead_of_their_readers_and_no_further(server, monkeypatch):
    monkeypatch.setattr(staging, "_NUM_AT_ONCE", 2)
    cases, _, _ = opened(server.url)

    def come(number):
        wanted, until = {path.name for ref in cases.refs[:number] for path in ref.files}, time.monotonic() + HANGS_S
        while not wanted <= {name for name, _ in server.sent} and time.monotonic() < until:
            time.sleep(0.01)
        return {name for name, _ in server.sent} - {"dataset.json"} == wanted

    with staging.StagingAhead(ref.files for ref in cases.refs) as ahead:
        assert come(2)
        ahead.advance()
        assert come(3)


def test_content_is_removed_when_others_need_its_place(server, monkeypatch):
    monkeypatch.setattr(remote, "_JUST_GIVEN_S", 0.0)
    cases, _, _ = opened(server.url)
    sizes = [ref.images[0].stat().st_size for ref in cases]
    cases, _, _ = opened(server.url, max_bytes=max(sizes) * 2 + 10)
    for ref in cases:
        read_header(ref.images[0])
    kept = list((cases.root / ".content").rglob("*.nii.gz"))
    assert {path.name for path in kept} == {ref.images[0].name for ref in cases.refs[-2:]}
    cases, _, _ = opened(server.url, max_bytes=100)
    with pytest.raises(ScanError, match=r"larger than the 100 B for content of .*set XDG_CACHE_HOME"):
        read_header(cases.refs[0].images[0])


def test_what_is_not_there_is_said(server, own_msd, monkeypatch):
    cases, _, _ = opened(server.url)
    (own_msd / "imagesTr" / "case_1.nii.gz").unlink()
    with pytest.raises(
        ScanError, match=r"imagesTr/case_1\.nii\.gz cannot be read .*check the URL and your permissions"
    ):
        read_header(cases.refs[1].images[0])
    with pytest.raises(DatasetError, match="nothing cannot be read"):
        open_cases(f"{server.url}/nothing")
    with pytest.raises(DatasetError, match=r"nosuch://x/y cannot be opened .*voxelocity\[remote\]"):
        open_cases("nosuch://x/y")
    server.shutdown()
    server.server_close()
    monkeypatch.setattr(remote, "_MOST_OPENING_S", 0.0)
    with pytest.raises(DatasetError, match=r"could not be reached for .*check the connection"):
        open_cases(f"{server.url}/other")


def test_a_refusal_is_reported_at_once(server):
    server.faults["dataset.json"] = ["refusal"]
    waits = []
    with pytest.raises(DatasetError, match=r"cannot be read \(403.*check the URL and your permissions"):
        open_mirror(server.url, sleep=waits.append)
    assert waits == []


def test_what_is_here_already_is_read_without_a_connection(server, own_msd, monkeypatch):
    cases = open_cases(server.url)
    assert_same(cases.refs[0], open_cases(own_msd).refs[0])
    server.shutdown()
    server.server_close()
    monkeypatch.setattr(staging, "_stages", {})
    monkeypatch.setattr(remote, "_MOST_OPENING_S", 0.0)
    with pytest.warns(UserWarning, match="using the list of files from the last time"):
        again = open_cases(cases.root)
    assert again.refs == cases.refs
    assert_same(again.refs[0], open_cases(own_msd).refs[0])


def test_the_beginning_of_an_older_file_is_not_continued(server, own_msd, monkeypatch):
    """Also where the server names no checksum."""
    server.has_md5 = False
    monkeypatch.setattr(remote, "_CHUNK_BYTES", 5000)
    cases, _, _ = opened(server.url)
    name = cases.refs[0].images[0].name
    content = cases.root / ".content" / "imagesTr"
    content.mkdir(parents=True)
    (content / f".{name}.part").write_bytes(b"of an older file" * 500)
    shutil.copy(own_msd / "imagesTr" / "case_3.nii.gz", own_msd / "imagesTr" / name)
    cases, _, _ = opened(server.url)
    assert_same(cases.refs[0], open_cases(own_msd).refs[0])


def test_a_malformed_description_is_reported_at_its_place_and_not_as_a_lost_connection(server, own_msd):
    for content, text in (
        ('{"training": [', "not valid JSON at line 1"),
        ('{"training": 3}', '"training" is a number'),
    ):
        (own_msd / "dataset.json").write_text(content)
        with pytest.raises(DatasetError, match=text):
            open_cases(server.url)


def test_a_table_with_its_ending_in_capitals_is_read_too(server, own_msd):
    lines = ("image,label", "imagesTr/case_0.nii.gz,labelsTr/case_0.nii.gz")
    (own_msd / "CASES.CSV").write_text("\n".join(lines))
    described = {"name": "x", "training": [{"image": name} for name in ("CASES.CSV", *lines[1].split(","))]}
    (own_msd / "dataset.json").write_text(json.dumps(described))
    (case,) = open_cases(f"{server.url}/CASES.CSV")
    assert case.images[0].name == "case_0.nii.gz"


@pytest.mark.parametrize("url", ["https://me:secret1@host/data", "https://host/data?token=secret1"])
def test_a_url_with_a_password_is_refused_and_not_repeated(url, scratch):
    with pytest.raises(DatasetError, match="holds a user name, password or token") as caught:
        open_cases(url)
    assert "secret1" not in str(caught.value)
    assert not scratch.exists()


def test_a_name_that_leaves_the_folder_is_left_out(server, own_msd):
    described = (own_msd / "dataset.json").read_text()
    (own_msd / "dataset.json").write_text(described.replace("imagesTr/case_0.nii.gz", "../../case_0.nii.gz"))
    with pytest.raises(DatasetError):
        open_cases(server.url)


@pytest.mark.filterwarnings("ignore:source. .* cannot be reached now")
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("rejection", "the server answers 400"),
        ("gone", "check the URL"),
        ("missing server", "501"),
        ("login", "a web page instead, perhaps a login page"),
        ("short", "the server sent nothing after"),
    ],
)
def test_an_error_that_trying_again_does_not_change_ends_within_a_minute(server, fault, text):
    cases, waits, _ = opened(server.url)
    name = cases.refs[0].images[0].name
    server.faults[name] = [fault] * 100
    with pytest.raises(ScanError, match=text) as caught:
        read_header(cases.refs[0].images[0])
    assert name in str(caught.value)
    assert sum(waits) < 60.0


def test_a_tag_that_is_no_checksum_costs_one_more_download(server, own_msd):
    server.tag = "0" * 32
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cases, _, _ = opened(server.url)
        for found, wanted in zip(cases, open_cases(own_msd), strict=True):
            assert_same(found, wanted)
    assert sum("not checksums" in str(warning.message) for warning in caught) <= 1


def test_a_full_disk_is_not_taken_for_a_lost_connection(server, monkeypatch):
    cases, waits, _ = opened(server.url)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(remote, "_refuse_page", full)
    with pytest.raises(ScanError, match=r"cannot be kept in .*No space left on device.*XDG_CACHE_HOME"):
        read_header(cases.refs[0].images[0])
    assert waits == []


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_mirror_that_cannot_be_written_is_refused_in_words(server, is_whole):
    cases, _, _ = opened(server.url)
    for name in (".content/imagesTr", ".start"):
        (cases.root / name).write_text("in the way")
    with pytest.raises(ScanError, match=r"cannot be kept in .*XDG_CACHE_HOME"):
        staging.stage(cases.refs[0].images[0], is_whole=is_whole)


@pytest.mark.filterwarnings("ignore:source. .* cannot be reached now")
def test_an_index_of_impossible_sizes_is_not_used(tmp_path):
    class Lost:
        def ls(self, folder, detail):
            raise ConnectionError("lost")

    (tmp_path / ".voxelocity-remote.json").write_text(json.dumps({"files": {"a": {"num_bytes": "many"}}}))
    mirror = remote._Mirror("http://host/d", tmp_path, Lost(), max_bytes=None, sleep=lambda seconds: None)
    with pytest.raises(DatasetError, match="could not be reached"):
        mirror.update()


def test_a_size_that_no_file_has_is_the_fault_of_the_server(own_msd, monkeypatch):
    with pytest.raises(ContentError, match=r"x\.nii has 1125899906842624 bytes"):
        RemoteFile.of("x.nii", {"num_bytes": 1 << 50})
    with pytest.raises(ContentError, match="-5 bytes"):
        RemoteFile.of("x.nii", {"num_bytes": -5})


class _Pages:
    """A web server whose pages link to themselves."""

    def __init__(self, names):
        self.names, self.num_asked = names, 0

    def ls(self, folder, detail):
        self.num_asked += 1
        return [{"name": f"{folder}/{name}/", "type": "directory", "size": None} for name in self.names]

    def _strip_protocol(self, place):
        return place


@pytest.mark.filterwarnings("ignore:source. .* cannot be reached now")
@pytest.mark.parametrize("names", [["sub"], ["a", "b"]])
def test_pages_that_contain_themselves_are_not_followed_for_ever(names, tmp_path):
    pages = _Pages(names)
    mirror = remote._Mirror("http://host/d", tmp_path / "d", pages, max_bytes=None, sleep=lambda seconds: None)
    with pytest.raises(DatasetError, match="link to more than"):
        mirror.update()
    assert pages.num_asked < 1000


def crafted(folder, url, files):
    """A folder that someone hands over, which says that it mirrors a URL."""
    text = json.dumps({"url": url, "files": {name: {"num_bytes": 1} for name in files}})
    (folder / ".voxelocity-remote.json").write_text(text)


def test_a_handed_over_folder_that_says_it_is_a_mirror_connects_nowhere_and_deletes_nothing(server, own_msd, tmp_path):
    handed = tmp_path / "handed" / local_name(server.url)
    shutil.copytree(own_msd, handed)
    victims = [tmp_path / "absolute.txt", tmp_path / "handed" / "relative.txt"]
    for victim in victims:
        victim.write_text("precious")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "settings.ini").write_text("precious")
    (handed / "conf").symlink_to(outside)
    crafted(handed, server.url, [str(victims[0]), "../relative.txt", "conf/settings.ini"])
    with pytest.warns(UserWarning, match="read as they are"):
        cases = open_cases(handed)
    assert len(cases) == len(open_cases(own_msd))
    assert server.sent == []
    assert [path.read_text() for path in (*victims, outside / "settings.ini")] == ["precious"] * 3


@pytest.mark.parametrize(
    "index", ["{}", "[1]", "x", '{"url": 5}', '{"url": null}', '{"url": "github://x"}', '{"url": ""}', b"\xff"]
)
@pytest.mark.parametrize("is_ours", [False, True])
def test_a_damaged_index_is_not_followed(own_msd, scratch, tmp_path, index, is_ours):
    folder = (scratch if is_ours else tmp_path) / "x"
    shutil.copytree(own_msd, folder)
    (folder / ".voxelocity-remote.json").write_bytes(index if isinstance(index, bytes) else index.encode())
    with pytest.warns(UserWarning, match="read as they are"):
        assert len(open_cases(folder)) > 0


def test_names_of_an_index_that_leave_the_mirror_are_not_used(server, scratch, tmp_path):
    cases = open_cases(server.url)
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    crafted(cases.root, server.url, [str(victim), "../../../../victim.txt", "", ".", ".content/x", "a\0b"])
    assert len(open_cases(server.url)) == len(cases)
    assert victim.read_text() == "precious"
    assert (cases.root / ".content").exists()


def test_a_protocol_that_needs_more_is_refused_in_words():
    with pytest.raises(DatasetError, match=r"github://x cannot be opened"):
        open_cases("github://x")


@pytest.mark.parametrize("place", ["http://169.254.169.254/latest/meta-data/", "http://[fe80::1]/x"])
def test_a_redirect_to_services_of_the_network_link_is_not_followed(server, place):
    server.leads_to = place
    with pytest.raises(DatasetError, match=r"leads to (169\.254\.169\.254|fe80::1), an address in the local net"):
        opened(server.url)
    assert not server.sent or all(not name.endswith(".gz") for name, _ in server.sent)


def test_a_redirect_within_the_same_machine_is_followed(server, own_msd):
    with Server(own_msd) as other:
        thread = threading.Thread(target=other.serve_forever, args=(0.01,))
        thread.start()
        try:
            server.leads_to = f"{other.url}/imagesTr/case_0.nii.gz"
            cases, _, _ = opened(server.url)
            assert len(cases) > 0
        finally:
            other.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("8.8.8.8", 0),
        ("10.1.2.3", 1),
        ("127.0.0.1", 2),
        ("::1", 2),
        ("169.254.169.254", 3),
        ("0.0.0.0", 2),
        ("::ffff:127.0.0.1", 2),
        ("::ffff:169.254.169.254", 3),
    ],
)
def test_addresses_are_ordered_by_how_near_they_are(host, expected):
    assert _nearness(host) == expected
