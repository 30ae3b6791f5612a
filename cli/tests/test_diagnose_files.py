"""Archives within bounds, and host names from paths."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from goodput_cli.diagnose import diagnose as diagnose_gathered
from goodput_cli.diagnose.gather import gather_paths
from goodput_cli.diagnose.hosts import assign, from_name, looks_like_host
from goodput_cli.diagnose.needs import needs
from goodput_cli.diagnose.notable import notable
from goodput_cli.diagnose.unpack import Bounds, Unpacker
from goodput_cli.main import build

PASTES = Path(__file__).parent / "pastes"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
real = pytest.mark.skipif(not DATA.is_dir(), reason="the real captures of ../shared/data are not here")
IBSTAT = (PASTES / "ibstat.txt").read_bytes()
LINES = [line for paste in sorted(PASTES.iterdir()) for line in paste.read_text().split("\n")]
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "plain": lambda data: data,
}


def diagnose(*arguments: Path | str, expect: int = 0) -> dict[str, Any]:
    given_ = ["diagnose", *(str(each) for each in arguments), "--json"]
    result = CliRunner().invoke(build(given_), given_)
    assert result.exit_code == expect, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def tar(members: dict[str, bytes], *, link: str = "") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1740327858
            archive.addfile(member, io.BytesIO(data))
        if link:
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    return packed.getvalue()


def unpack(path: Path, folder: Path, **bounds: int) -> tuple[list[tuple[str, bytes]], Unpacker]:
    folder.mkdir(exist_ok=True)
    unpacker = Unpacker(folder, Bounds(**bounds))
    return [(item.name, item.path.read_bytes() if not item.left_out else b"") for item in unpacker.items([path])], unpacker


@pytest.mark.parametrize("packer", PACKERS)
def test_a_tar_of_several_hosts_is_read_whatever_packs_it(packer: str, tmp_path: Path) -> None:
    archive = tmp_path / "bundle"
    archive.write_bytes(PACKERS[packer](tar({"case/node7/ibstat.txt": IBSTAT, "case/node8/ibstat.txt": IBSTAT})))
    document = diagnose(archive)
    assert [(file["path"], file["host"]) for file in document["files"]] == [
        (f"{archive}/case/node7/ibstat.txt", "node7"),
        (f"{archive}/case/node8/ibstat.txt", "node8"),
    ]
    assert str(tmp_path) in json.dumps(document)
    assert "goodput-diagnose-" not in json.dumps(document)


@pytest.mark.parametrize("packer", [packer for packer in PACKERS if packer != "plain"])
def test_a_packed_file_is_read_under_its_own_name(packer: str, tmp_path: Path) -> None:
    file = tmp_path / f"node7_ibstat.txt.{packer}"
    file.write_bytes(PACKERS[packer](IBSTAT))
    (told,) = diagnose(file)["files"]
    assert (told["path"], told["recognised"], told["host"]) == (str(file), ["ibstat"], "node7")


def test_a_zip_is_read_and_an_archive_in_an_archive_too(tmp_path: Path) -> None:
    archive = tmp_path / "bundle.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("node7.tar.gz", gzip.compress(tar({"ibstat.txt": IBSTAT})))
    (told,) = diagnose(archive)["files"]
    assert (told["path"], told["host"]) == (f"{archive}/node7.tar.gz/ibstat.txt", "node7")


@real
def test_packed_recorders_and_logs_are_diagnosed_as_if_they_were_not(tmp_path: Path) -> None:
    dumps = DATA / "flight-recorder" / "gloo-4ranks-rank2-never-joins"
    archive = tmp_path / "dumps.tar.zst"
    archive.write_bytes(PACKERS["zst"](tar({f"dumps/{each.name}": each.read_bytes() for each in dumps.iterdir()})))
    (verdict,) = diagnose(archive)["verdicts"]
    assert verdict["culprit"]["ranks"] == [2]
    log = tmp_path / "dmesg.xz"
    log.write_bytes(lzma.compress((DATA / "public" / "gpud" / "dmesg-with-xid-119.log").read_bytes()))
    (verdict,) = diagnose(log)["verdicts"]
    assert verdict["fault_class"] == "gpu_driver"
    assert verdict["evidence"][0]["event_id"].startswith(f"{log}#")


def test_nothing_in_an_archive_leads_out_of_it(tmp_path: Path) -> None:
    archive = tmp_path / "evil.tar"
    archive.write_bytes(tar({"../../escaped": b"x", "/etc/absolute": b"y", "fine": b"z"}, link="leads-out"))
    items, unpacker = unpack(archive, tmp_path / "place")
    assert sorted(items) == [(f"{archive}/etc/absolute", b"y"), (f"{archive}/fine", b"z")]
    assert not (tmp_path / "escaped").exists()
    assert any("2 members" in warning for warning in unpacker.warnings)


def test_what_is_unpacked_is_bounded_and_the_bound_is_said(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(b"a" * 100_000))
    ((_, data),), unpacker = unpack(bomb, tmp_path / "one", bytes_of_one=1000)
    assert len(data) == 1000
    assert any("only its first 1000 bytes" in warning for warning in unpacker.warnings)
    archive = tmp_path / "many.tar"
    archive.write_bytes(tar({f"{number}": b"x" for number in range(9)}))
    items, unpacker = unpack(archive, tmp_path / "many", files=4)
    assert len(items) == 4
    assert any("more than 4 files" in warning for warning in unpacker.warnings)


def test_what_is_packed_over_and_over_is_not_opened_for_ever(tmp_path: Path) -> None:
    file, data = tmp_path / "deep.gz", IBSTAT
    for _ in range(6):
        data = gzip.compress(data)
    file.write_bytes(data)
    document = diagnose(file, expect=1)
    assert document["unrecognised"] == [{"path": str(file), "why": "packed more than 3 times over"}]


@pytest.mark.parametrize("cut", [3, 40, 200])
def test_a_torn_archive_is_named_and_what_came_before_the_tear_still_counts(cut: int, tmp_path: Path) -> None:
    archive = tmp_path / "torn.tar.gz"
    archive.write_bytes(gzip.compress(tar({"node7/ibstat.txt": IBSTAT, "node7/more.txt": bytes(range(256)) * 400}))[:-cut])
    document = diagnose(archive)
    assert any("stops in the middle" in warning for warning in document["warnings"])
    assert document["files"][0]["recognised"] == ["ibstat"]


@settings(max_examples=20, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_behind_a_packers_magic_make_it_raise(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, magic in enumerate(
            (b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"\0" * 257 + b"ustar")
        ):
            path, place = Path(folder) / f"{number}", Path(folder) / f"place{number}"
            path.write_bytes(magic + data)
            items, _ = unpack(path, place)
            assert len(items) >= 1


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["a", "node7/b", "node7/c.log", "hostname", "x/y/z", "ibstat_20250223_162418"]),
        st.one_of(
            st.binary(max_size=300),
            st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=60)), max_size=40).map(
                lambda lines: "\n".join(lines).encode("utf-8", "replace")
            ),
        ),
        min_size=1,
    )
)
def test_no_mix_of_files_makes_it_raise_and_each_has_its_line(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as place:
        for name, data in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        gathered = gather_paths([Path(folder)], Path(place))
        diagnose_gathered(gathered)
        assert len(gathered.files) >= len(files)  # an archive by accident has more
        for file in gathered.files:
            assert file.kinds or file.why
            assert not (file.kinds and file.why)
        notable(gathered.facts, gathered.fabric)
        needs(gathered, given_topology=False)


# -- host names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["node7", "a08-p1-dgx-04-c01", "gpu-h100-12.cluster.local", "jplc7eb7-vm-0", "h7", "node-07", "vm-07-05"]
)
def test_names_with_a_number_look_like_hosts(name: str) -> None:
    assert looks_like_host(name)


@pytest.mark.parametrize(
    "name",
    [
        "before",
        "xid-119",
        "with-xid-119",
        "rank3",
        "gpu0",
        "h100",
        "rank_3",
        "ens1np0",
        "eth0",
        "mlx5_0",
        "t0",
        "20250223",
        "localhost",
        "ibstat",
        "user1",
    ],
)
def test_names_of_other_things_do_not(name: str) -> None:
    assert not looks_like_host(name)


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("node7_ibstat.txt", "node7"),
        ("dmesg-node7", "node7"),
        ("node7.dmesg.log.gz", "node7"),
        ("nvidia-smi-q_node7_20250223_162418.txt", "node7"),
        ("ibstat.txt", ""),
        ("dmesg-with-xid-119.log", ""),
        ("node7_node8.txt", ""),
        ("ethtool_-S_ens1np0", ""),
    ],
)
def test_a_files_name_names_a_host_once_the_tools_words_are_off(name: str, host: str) -> None:
    assert from_name(name) == host


def test_a_file_takes_the_host_that_the_rest_of_its_folder_names() -> None:
    inside = {"case/dmesg": frozenset({"node7"}), "mixed/a": frozenset({"x1"}), "mixed/b": frozenset({"x2"})}
    found = assign(["case/ibstat.txt", "mixed/ibstat.txt"], inside)
    assert found["case/ibstat.txt"] == ("node7", "the other files of its folder")
    assert "mixed/ibstat.txt" not in found


def test_a_file_hostname_speaks_for_all_below_its_folder() -> None:
    inside = {"report/a/etc/hostname": frozenset({"node7"}), "report/b/hostname": frozenset({"node8"})}
    found = assign(["report/a/sys/net/ethtool", "report/b/ibstat", "report/ibstat"], inside)
    assert found["report/a/sys/net/ethtool"] == ("node7", "the file `hostname`")
    assert found["report/b/ibstat"].host == "node8"
    assert "report/ibstat" not in found


def test_a_short_name_in_a_path_means_the_full_name_that_stands_inside() -> None:
    found = assign(["case/node7/ibstat.txt"], {"case/node7/dmesg": frozenset({"node7.cluster.example"})})
    assert found["case/node7/ibstat.txt"].host == "node7.cluster.example"


def test_what_the_caller_says_stands_above_any_path() -> None:
    assert assign(["node7/ibstat.txt"], {}, "node9")["node7/ibstat.txt"] == ("node9", "--host")


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_name_gives_a_host_or_none(name: str) -> None:
    host = from_name(name)
    assert host == "" or looks_like_host(host)
