"""Data sets: found, checked, downloaded whole or not at all; what is missing is said with the ways to get it."""

from __future__ import annotations

import bz2
import hashlib
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import tiny_data
from thinwire_lab.data import Archive, Checksum, DataError, DataSet, cache_folder, is_available, load
from thinwire_lab.data.cifar import CIFAR10, read_cifar
from thinwire_lab.data.download import download
from thinwire_lab.data.libsvm_files import read_a9a, read_libsvm
from thinwire_lab.data.texts import (
    WIKITEXT2,
    WIKITEXT103,
    read_shakespeare,
    read_wikitext2,
    read_wikitext2_bytes,
    read_wikitext103,
    tokenize,
)  # fmt: skip

REAL = Path(os.environ.get("THINWIRE_DATA", "/nonexistent"))


def real(inside):
    return pytest.mark.skipif(
        not (REAL / inside).exists(), reason=f"needs the real data: THINWIRE_DATA with {inside} in it"
    )


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """No test looks at the user's own data or writes into the user's cache."""
    monkeypatch.delenv("THINWIRE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts = (read_wikitext2, read_wikitext2_bytes, read_wikitext103, read_shakespeare)
    for reader in (read_cifar, *texts, read_a9a, read_libsvm):
        reader.cache_clear()


def pin(content):
    return Checksum(len(content), hashlib.sha256(content).hexdigest())


def remote(tmp_path, content=b"four", served=None):
    """A set of one file, at an address of this machine."""
    (tmp_path / "served").write_bytes(content if served is None else served)
    return DataSet("a set", "set", {"one": pin(content)}, urls={"one": (tmp_path / "served").as_uri()})


def archive(tmp_path, files, name="set.tar.gz"):
    with tarfile.open(tmp_path / name, "w:gz") as packed:
        for path in files:
            packed.add(path, f"{path.parent.name}/{path.name}")
    return tmp_path / name


# readers


@pytest.mark.parametrize("classes", [10, 100])
def test_images_come_in_the_order_of_the_files(tmp_path, classes):
    tiny_data.write_cifar(tmp_path, classes, per_file=100)
    images = read_cifar(classes, 100, 30, str(tmp_path))
    rows = tiny_data.cifar_rows(100, classes, 0)
    assert images.train.shape == (100, 3, 32, 32) and images.train.dtype == torch.uint8
    assert np.array_equal(images.train.numpy().reshape(100, -1), rows[:, -3072:])
    assert images.train_labels.tolist() == [row % classes for row in range(100)] and len(images.test) == 30


def test_as_many_files_are_read_as_it_takes(tmp_path):
    tiny_data.write_cifar(tmp_path, per_file=20)
    assert len(read_cifar(10, 70, 5, str(tmp_path)).train) == 70
    with pytest.raises(DataError, match="101 training images are requested, there are 100"):
        read_cifar(10, 101, 5, str(tmp_path))


def test_an_archive_need_not_be_unpacked(tmp_path):
    unpacked = tiny_data.write_cifar(tmp_path / "a")
    packed = tmp_path / "b"
    packed.mkdir()
    files = sorted((unpacked / CIFAR10.folder).iterdir())
    archive(packed, files, "cifar-10-binary.tar.gz")
    (packed / "SHA256SUMS").write_text((unpacked / CIFAR10.folder / "SHA256SUMS").read_text())
    ours, theirs = (read_cifar(10, 60, 20, str(folder)) for folder in (unpacked, packed))
    assert torch.equal(ours.train, theirs.train) and torch.equal(ours.test_labels, theirs.test_labels)


def test_words_are_numbered_as_the_training_file_has_them(tmp_path):
    inside = tmp_path / "wikitext-2"
    inside.mkdir()
    (inside / "wiki.train.tokens").write_text(" b a <unk> \n \n b c \n")
    (inside / "wiki.valid.tokens").write_text(" c d \n")
    tiny_data.sums(inside)
    text = read_wikitext2(str(tmp_path))
    assert text.vocabulary == ("<unk>", "<eos>", "b", "a", "c")
    assert [text.vocabulary[at] for at in text.train] == ["b", "a", "<unk>", "<eos>", "<eos>", "b", "c", "<eos>"]
    assert [text.vocabulary[at] for at in text.valid] == ["c", "<unk>", "<eos>"]


def test_bytes_of_wikitext_are_those_of_the_files(tmp_path):
    text = read_wikitext2_bytes(str(tiny_data.write_wikitext(tmp_path)))
    for half, name in ((text.train, "train"), (text.valid, "valid")):
        assert bytes(half.tolist()) == (tmp_path / "wikitext-2" / f"wiki.{name}.tokens").read_bytes()
    assert len(text.vocabulary) == 256 and text.train.dtype == torch.uint8


def test_the_archive_of_wikitext_is_read_as_it_is(tmp_path):
    folder = tiny_data.write_wikitext(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with zipfile.ZipFile(tmp_path / "b" / "wikitext-2-v1.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in WIKITEXT2.files:
            packed.write(folder / "wikitext-2" / name, f"wikitext-2/{name}")
    (tmp_path / "b" / "SHA256SUMS").write_text((folder / "wikitext-2" / "SHA256SUMS").read_text())
    assert torch.equal(read_wikitext2(str(folder)).train, read_wikitext2(str(tmp_path / "b")).train)


def test_numbering_line_by_line_is_numbering_the_whole():
    numbers = np.random.RandomState(0)
    for _ in range(50):
        text = "".join(numbers.choice([" a", " b", "\n", " ", "\u2028", "\t\n", " é", "\r\n"], 40))
        words = [word for line in text.removesuffix("\n").split("\n") for word in (*line.split(), "<eos>")]
        known = {word: at for at, word in enumerate(sorted(set(words)))}
        found = tokenize("a text", text.encode(), known.__getitem__)
        assert found.dtype == torch.int32 and found.tolist() == [known[word] for word in words]


def test_what_is_not_utf8_is_said_with_its_line():
    with pytest.raises(DataError, match=r"a text is not UTF-8 \(line 2"):
        tokenize("a text", b"a\n\xff\n", len)


def wikitext103(folder, content=b" a b \n"):
    """The archive, with these few words in it."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "wikitext-103-v1.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in WIKITEXT103.files:
            packed.writestr(f"wikitext-103/{name}", content)
    return folder / "wikitext-103-v1.zip"


def test_files_without_sums_are_checked_by_their_archive(tmp_path):
    path = wikitext103(tmp_path / "a")
    own = replace(WIKITEXT103, archive=Archive(WIKITEXT103.archive.url, Checksum(None, pin(path.read_bytes()).sha256)))
    assert load(own, ["wiki.valid.tokens"], path.parent).files == {"wiki.valid.tokens": b" a b \n"}
    assert "official" in load(own, ["wiki.valid.tokens"], path.parent).origin
    with pytest.raises(
        DataError, match=f"wikitext-103-v1.zip is damaged or another file: expected sha256 {'242ba0f20b'}"
    ):
        load(WIKITEXT103, ["wiki.valid.tokens"], path.parent)


def test_an_unpacked_folder_without_sums_must_vouch_for_itself(tmp_path):
    inside = tiny_data.write_wikitext(tmp_path, name="wikitext-103") / "wikitext-103"
    assert "by its own SHA256SUMS" in read_wikitext103(str(tmp_path)).origin
    (inside / "SHA256SUMS").unlink()
    read_wikitext103.cache_clear()
    with pytest.raises(DataError) as error:
        read_wikitext103(str(tmp_path))
    for part in ("cannot be checked: only the sum of wikitext-103-v1.zip is known", WIKITEXT103.archive.checksum.sha256,
                 f"cd {inside} && sha256sum wiki.train.tokens wiki.valid.tokens > SHA256SUMS"):  # fmt: skip
        assert part in str(error.value)


def test_a_downloaded_archive_stays_packed_if_its_files_have_no_sums(tmp_path, capsys):
    path = wikitext103(tmp_path / "a")
    data = replace(WIKITEXT103, archive=Archive(path.as_uri(), Checksum(None, pin(path.read_bytes()).sha256)))
    assert not is_available(data)
    assert load(data, list(data.files)).files["wiki.train.tokens"] == b" a b \n" and " B" in capsys.readouterr().err
    assert [p.name for p in cache_folder().rglob("*")] == [path.name] and is_available(data)
    other = replace(data, archive=Archive(path.as_uri(), Checksum(None, pin(b"").sha256)))
    with pytest.raises(DataError, match="expected sha256"):
        download(other, list(data.files), tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())


def test_only_the_large_set_may_have_large_members(tmp_path):
    assert WIKITEXT103.max_file_bytes == 1 << 30 and CIFAR10.max_file_bytes == WIKITEXT2.max_file_bytes == 1 << 28
    path = wikitext103(tmp_path / "a", b"a" * 100)
    with pytest.raises(DataError, match=r"has no wikitext-103/wiki.train.tokens"):
        download(replace(WIKITEXT103, max_file_bytes=99, files={"wiki.train.tokens": pin(b"a" * 100)},
                         archive=Archive(path.as_uri(), pin(path.read_bytes()))), [], tmp_path / "b")  # fmt: skip


def test_nine_parts_in_ten_of_shakespeare_are_for_training(tmp_path):
    text = read_shakespeare(str(tiny_data.write_shakespeare(tmp_path, 1000)))
    assert len(text.train) == 900 and len(text.valid) == 100
    assert "".join(text.vocabulary[at] for at in text.train[:20]) == "To be, or not to be:"


def test_a9a_has_0_and_1_for_its_labels(tmp_path):
    features, labels, test, test_labels, origin = read_a9a(str(tiny_data.write_a9a(tmp_path)))
    assert features.shape == test.shape == (60, 123) and labels.sum() == test_labels.sum() == 15
    assert "not the official files" in origin


@pytest.mark.parametrize("packing", ["", ".bz2"])
def test_any_libsvm_file_with_two_labels_will_do(tmp_path, packing):
    content = b"3 1:0.5\n7 4:2\n3 2:1\n"
    path = tmp_path / f"mine{packing}"
    path.write_bytes(bz2.compress(content) if packing else content)
    features, labels = read_libsvm(str(path))
    assert features.shape == (3, 4) and labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("1 1:1\n2 1:1\n3 1:1\n", "two labels, this file has 3"),
        ("1 1:1\n", "two labels, this file has 1"),
        ("1 1:1\n2 99999999999:1\n", "too many for a dense matrix"),
        ("one two\n", "is not a LIBSVM file: line 1"),
        ("", "has no rows"),
    ],
)
def test_other_files_are_refused(tmp_path, content, says):
    (tmp_path / "mine").write_text(content)
    with pytest.raises(DataError, match=says):
        read_libsvm(str(tmp_path / "mine"))
    with pytest.raises(DataError, match="no such file; data must be mushrooms, a9a, or"):
        read_libsvm(str(tmp_path / "other"))


# what is not as it should be


def test_what_is_missing_is_said_with_the_ways_to_get_it(tmp_path):
    with pytest.raises(DataError) as error:
        read_cifar(10, 20_000, 100, str(tmp_path / "none"))
    text = str(error.value)
    for part in (
        str(tmp_path / "none"), "no such folder", "cifar-10-batches-bin/data_batch_2.bin", "test_batch.bin",
        CIFAR10.archive.url, CIFAR10.archive.checksum.sha256, "--data", "THINWIRE_DATA", str(cache_folder()),
    ):  # fmt: skip
        assert part in text


def test_a_folder_with_a_part_of_the_files_is_an_error(tmp_path):
    inside = tiny_data.write_cifar(tmp_path) / CIFAR10.folder
    (inside / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"has data_batch_1.bin, but test_batch.bin is missing"):
        load(CIFAR10, ["data_batch_1.bin", "test_batch.bin"], tmp_path)


def test_files_that_are_not_the_official_ones_are_refused_unless_the_folder_vouches_for_them(tmp_path):
    inside = tiny_data.write_cifar(tmp_path) / CIFAR10.folder
    assert "not the official files" in read_cifar(10, 20, 20, str(tmp_path)).origin
    (inside / "SHA256SUMS").unlink()
    read_cifar.cache_clear()
    with pytest.raises(DataError, match=r"data_batch_1.bin is truncated: expected 30,730,000 bytes, found 61,460"):
        read_cifar(10, 20, 20, str(tmp_path))


def test_a_changed_byte_is_found(tmp_path):
    inside = tiny_data.write_cifar(tmp_path) / CIFAR10.folder
    content = bytearray((inside / "data_batch_1.bin").read_bytes())
    expected = hashlib.sha256(content).hexdigest()
    content[100] ^= 1
    (inside / "data_batch_1.bin").write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    with pytest.raises(
        DataError, match=f"data_batch_1.bin is damaged or another file: expected sha256 {expected}, found {found}"
    ):
        read_cifar(10, 20, 20, str(tmp_path))


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_truncated_archive_is_an_error(tmp_path, keep):
    files = sorted((tiny_data.write_cifar(tmp_path / "a", per_file=50) / CIFAR10.folder).iterdir())
    path = archive(tmp_path, files, "cifar-10-binary.tar.gz")
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz"):
        load(CIFAR10, list(CIFAR10.files), tmp_path)


def test_an_archive_writes_nothing_and_names_what_it_lacks(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "evil").write_bytes(b"!")
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "x" / "evil", "../escaped")
    with pytest.raises(DataError, match=r"has no cifar-10-batches-bin/test_batch.bin; is it the archive of CIFAR-10"):
        load(CIFAR10, ["test_batch.bin"], tmp_path)
    assert not (tmp_path.parent / "escaped").exists()


def test_a_row_with_an_impossible_label_or_half_a_row_is_an_error(tmp_path):
    inside = tiny_data.write_cifar(tmp_path) / CIFAR10.folder
    rows = tiny_data.cifar_rows(20, 10, 0)
    rows[3, 0] = 10
    for content, says in (
        (rows.tobytes(), "a row has label 10"),
        (rows.tobytes()[:-1], "not a multiple of the row size"),
    ):
        (inside / "data_batch_1.bin").write_bytes(content)
        tiny_data.sums(inside)
        with pytest.raises(DataError, match=says):
            read_cifar(10, 20, 20, str(tmp_path))


# places and downloads


def test_the_named_folder_counts_before_the_variable_and_the_cache_and_is_the_only_one(tmp_path, monkeypatch):
    data = remote(tmp_path)
    for place in (tmp_path / "named", tmp_path / "variable"):
        (place / "set").mkdir(parents=True)
    (tmp_path / "variable" / "set" / "one").write_bytes(b"four")
    monkeypatch.setenv("THINWIRE_DATA", str(tmp_path / "variable"))
    assert load(data, ["one"]).files == {"one": b"four"} and not cache_folder().exists()
    with pytest.raises(DataError, match=r"not found in .*named"):
        load(data, ["one"], tmp_path / "named")
    assert not cache_folder().exists()


def test_a_download_is_kept_in_the_cache_and_told_about(tmp_path):
    data, told = remote(tmp_path, b"x" * 1_000_000), []
    assert load(data, ["one"], on_progress=lambda *progress: told.append(progress)).files["one"] == b"x" * 1_000_000
    assert told[-1] == (data.urls["one"], 1_000_000, 1_000_000) and told == sorted(told, key=lambda news: news[1])
    (tmp_path / "served").unlink()
    assert load(data, ["one"]).files["one"] == b"x" * 1_000_000


@pytest.mark.parametrize(
    ("served", "says"),
    [(b"fou", "ended after 3 of 4 bytes"), (b"fuor", "expected sha256 .* found"), (b"fours", "more than the 4 bytes")],
)
def test_a_download_that_is_not_whole_leaves_nothing(tmp_path, served, says):
    with pytest.raises(DataError, match=says):
        load(remote(tmp_path, served=served), ["one"])
    assert not [path for path in cache_folder().rglob("*") if path.is_file()]


def test_a_download_that_fails_names_the_ways_to_get_the_set(tmp_path):
    data = remote(tmp_path)
    (tmp_path / "served").unlink()
    with pytest.raises(DataError, match=r"(?s)Three ways to get it.*The download failed"):
        load(data, ["one"])


def test_a_downloaded_archive_is_unpacked_and_checked(tmp_path, capsys):
    source = tmp_path / "set"
    source.mkdir()
    (source / "one").write_bytes(b"1")
    (source / "two").write_bytes(b"22")
    packed = archive(tmp_path, [source / "one", source / "two"])
    files = {"one": pin(b"1"), "two": pin(b"22")}
    data = DataSet("a set", "set", files, Archive(packed.as_uri(), pin(packed.read_bytes())))
    assert load(data, ["two"]).files == {"two": b"22"} and " B of " in capsys.readouterr().err
    assert sorted(path.name for path in cache_folder().rglob("*") if path.is_file()) == ["one", "two"]
    with pytest.raises(DataError, match=r"set.tar.gz/one is damaged or another file"):
        download(replace(data, files=files | {"one": pin(b"2")}), ["one"], tmp_path / "other")


# the real sets, where they are


@real("cifar-10-batches-bin")
def test_the_real_cifar10_has_the_published_classes_and_statistics():
    images = read_cifar(10, 50_000, 10_000, str(REAL))
    assert images.train_labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert images.test_labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert images.train_labels.bincount().tolist() == [5000] * 10
    sample = images.train[:10_000].double() / 255
    assert torch.allclose(sample.mean((0, 2, 3)), torch.tensor(images.mean).double(), atol=0.01)


@real("cifar-100-binary")
def test_the_real_cifar100_has_its_fine_labels():
    images = read_cifar(100, 50_000, 10_000, str(REAL))
    assert images.train_labels.bincount().tolist() == [500] * 100
    assert images.test_labels.bincount().tolist() == [100] * 100


@real("wikitext-2")
def test_the_real_wikitext_has_the_published_counts():
    text = read_wikitext2(str(REAL))
    assert (len(text.train), len(text.valid), len(text.vocabulary)) == (2_088_628, 217_646, 33_278)


@real("tiny-shakespeare")
def test_the_real_shakespeare_has_65_characters():
    text = read_shakespeare(str(REAL))
    assert (len(text.train), len(text.valid), len(text.vocabulary)) == (1_003_854, 111_540, 65)


@real("a9a")
def test_the_real_a9a_has_the_published_counts():
    features, labels, test, test_labels, origin = read_a9a(str(REAL))
    assert (features.shape, test.shape) == ((32_561, 123), (16_281, 123)) and "official" in origin
    assert (labels.sum(), test_labels.sum(), features.sum()) == (7_841, 3_846, 451_592)
