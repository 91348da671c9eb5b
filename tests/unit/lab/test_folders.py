"""Images in folders: what is listed, what is refused, which piece of an image is taken; and ResNet-50."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from helpers import tiny_data
from helpers.laboratory import run_here, without_times
from thinwire.core import CompositionError, MissingExtra, derive_key
from thinwire_lab.configuration.config import Experiment, Method, RunGroup, TaskConfig
from thinwire_lab.data import DataError, cache_folder, folders
from thinwire_lab.data.folders import decode_image, find_images, read_folders
from thinwire_lab.models.initialization import initialize
from thinwire_lab.models.resnet import Bottleneck, resnet18, resnet50
from thinwire_lab.tasks import make_task
from thinwire_lab.tasks.crops import central_crop, draw_crop_numbers, random_crop
from thinwire_lab.tasks.folders import MODELS, spread_evenly
from thinwire_lab.tasks.splits import Split

IID = Split("iid")


@pytest.fixture(autouse=True)
def away_from_the_users_own(tmp_path, monkeypatch):
    monkeypatch.delenv("THINWIRE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    read_folders.cache_clear()


@pytest.fixture
def place(tmp_path):
    pytest.importorskip("PIL", reason="image folders need the extra `images`")
    return tiny_data.write_images(tmp_path / "data")


def touched(folder, *names):
    """Empty files; listing does not look into them."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def two_classes(folder):
    return touched(folder, *(f"imagenet/{half}/{kind}/1.png" for half in ("train", "val") for kind in "ab"))


# crops


def drawn_sizes():
    numbers = np.random.RandomState(0)
    draws = [draw for seed in range(50) for draw in draw_crop_numbers(derive_key(seed), 4)]
    return [(*(int(side) for side in 2 ** numbers.uniform(0, 11, 2)), draw) for draw in draws]


def test_a_crop_is_inside_the_image_and_of_its_form_and_area():
    for width, height, draws in drawn_sizes():
        left, top, right, bottom, _ = random_crop(width, height, draws)
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
        w, h = right - left, bottom - top
        if min(w, h) >= 20:  # rounding says little there
            assert 0.7 < w / h < 1.43
            fits = 0.5 <= width / height <= 2
            assert not fits or w * h >= 0.07 * width * height


def test_crops_follow_from_the_key_and_reach_all_parts():
    draws = draw_crop_numbers(derive_key(1), 500)
    assert draws == draw_crop_numbers(derive_key(1), 500) and draws != draw_crop_numbers(derive_key(2), 500)
    crops = [random_crop(300, 200, draw) for draw in draws]
    areas = [(c.right - c.left) * (c.bottom - c.top) / 60_000 for c in crops]
    assert min(areas) < 0.12 and max(areas) > 0.8 and 0.4 < np.mean(areas) < 0.6
    assert min(c.left for c in crops) == 0 and max(c.right for c in crops) == 300
    assert min(c.top for c in crops) == 0 and max(c.bottom for c in crops) == 200
    assert 180 < sum(c.mirrored for c in crops) < 320


def test_of_a_tiny_image_all_is_taken():
    for draws in draw_crop_numbers(derive_key(3), 50):
        assert random_crop(1, 1, draws)[:4] == (0, 0, 1, 1)
    whole = [65535, 0, 0, 1234, 4321, 0]  # all of the area, a square
    assert random_crop(77, 77, whole) == (0, 0, 77, 77, False)


@pytest.mark.parametrize(("width", "height"), [(256, 256), (500, 375), (3, 1000), (1, 1)])
def test_the_middle_is_a_square_of_seven_eighths(width, height):
    left, top, right, bottom, mirrored = central_crop(width, height)
    assert right - left == pytest.approx(bottom - top) == pytest.approx(min(width, height) * 7 / 8) and not mirrored
    assert left == pytest.approx(width - right) and top == pytest.approx(height - bottom)


@pytest.mark.parametrize(("count", "wanted"), [(1, 1), (10, 10), (10, 100), (50_000, 2_000), (10, 3)])
def test_test_images_are_taken_evenly(count, wanted):
    rows = spread_evenly(count, wanted)
    assert len(rows) == min(count, wanted) and rows[0] == 0 and rows[-1] < count
    gaps = rows.diff()
    assert len(gaps) == 0 or (gaps.min() >= 1 and gaps.max() - gaps.min() <= 1)


# listing


def test_images_are_listed_class_by_class_in_the_order_of_names(tmp_path):
    two_classes(tmp_path)
    touched(
        tmp_path / "imagenet" / "train", "b/0.JPG", "b/x.Jpeg", "b/note.txt", "b/.hidden.png", "README", ".git/1.png"
    )
    touched(tmp_path / "imagenet" / "train", "c/7.png")  # val may lack it
    data = read_folders("imagenet", str(tmp_path))
    assert data.classes == ("a", "b", "c") and data.train.names == ("1.png", "0.JPG", "1.png", "x.Jpeg", "7.png")
    assert data.train.labels.tolist() == [0, 1, 1, 1, 2] and data.train.labels.dtype == torch.int64
    assert data.train.path(3) == tmp_path / "imagenet" / "train" / "b" / "x.Jpeg" and data.val.labels.tolist() == [0, 1]
    assert "the user's own images" in data.origin and "7 of them, not checked" in data.origin


def test_the_named_folder_is_the_only_one_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    two_classes(tmp_path / "variable"), two_classes(cache_folder())
    assert find_images("imagenet") == cache_folder() / "imagenet"
    monkeypatch.setenv("THINWIRE_DATA", str(tmp_path / "variable"))
    assert find_images("imagenet") == tmp_path / "variable" / "imagenet"
    assert find_images("imagenet", tmp_path / "named") is None and find_images("other") is None


def test_what_is_missing_is_said_with_the_layout_and_the_ways_to_give_it(tmp_path):
    with pytest.raises(DataError) as error:
        read_folders("imagenet", str(tmp_path / "none"))
    for part in ("imagenet: not found in", str(tmp_path / "none"), "no such folder", "train/CLASS/IMAGE", "never downloaded",
                 "--data", "THINWIRE_DATA", str(cache_folder())):  # fmt: skip
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["train/a/1.png", "train/b/1.png"], "imagenet has no folder val; expected: train/CLASS/IMAGE"),
        (["train/a/1.png", "val/a/1.png"], "train has 1 classes, at least 2 are needed"),
        (["train/1.png", "val/a/1.png"], "train has 0 classes"),
        (["train/a/1.png", "train/b/1.png", "val/c/1.png"], "val has classes that train does not have: c"),
        (["train/a/1.png", "train/b/1.gif", "val/a/1.png"], r"train/b is empty: it has no \.jpg"),
        (["train/a/1.png", "train/b/1.png", "val/a/x"], r"val/a is empty"),
        (["train/a/1.png", "train/b/1.png", "val/x"], r"val has no images"),
    ],
)
def test_other_layouts_are_refused(tmp_path, files, says):
    touched(tmp_path / "imagenet", *files)
    with pytest.raises(DataError, match=says):
        read_folders("imagenet", str(tmp_path))


def test_without_pillow_it_is_said_what_to_install_before_training_starts(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtra, match=r"pip install 'thinwire\[images\]'"):
        make_task("image_folder", {}, two_classes(tmp_path)).prepare(1, IID)


# decoding


def test_a_piece_of_an_image_is_what_is_decoded(tmp_path):
    images = pytest.importorskip("PIL.Image", reason="image folders need the extra `images`")
    pixels = np.random.RandomState(0).randint(0, 256, (40, 50, 3)).astype(np.uint8)
    images.fromarray(pixels).save(tmp_path / "x.png")
    crop = random_crop(50, 40, draw_crop_numbers(derive_key(1), 1)[0])._replace(left=3, top=4, right=35, bottom=36)
    wanted = torch.from_numpy(pixels[4:36, 3:35]).permute(2, 0, 1)
    for mirrored, expected in ((False, wanted), (True, wanted.flip(2))):
        found = decode_image(tmp_path / "x.png", 32, lambda w, h, m=mirrored: crop._replace(mirrored=m))
        assert found.dtype == torch.uint8 and torch.equal(found, expected)
    images.fromarray(pixels[:, :, 0]).save(tmp_path / "grey.png")
    assert decode_image(tmp_path / "grey.png", 32, central_crop).shape == (3, 32, 32)


@pytest.mark.parametrize("name", ["00.png", "01.JPEG"])
def test_a_broken_image_is_named(place, name):
    path = place / "imagenet" / "train" / "class0" / name
    content = path.read_bytes()
    for broken in (b"", b"no image", content[: len(content) // 2], content[: len(content) - 40]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=rf"{name} cannot be decoded as an image"):
            decode_image(path, 32, central_crop)


def test_a_file_of_another_kind_is_not_opened_whatever_its_name(tmp_path):
    images = pytest.importorskip("PIL.Image", reason="image folders need the extra `images`")
    images.new("RGB", (8, 8)).save(tmp_path / "x.png", format="GIF")
    with pytest.raises(DataError, match="cannot be decoded as an image"):
        decode_image(tmp_path / "x.png", 32, central_crop)


def test_an_image_that_claims_to_be_huge_is_not_decoded(place, monkeypatch):
    path = place / "imagenet" / "train" / "class0" / "00.png"
    monkeypatch.setattr(folders, "MAX_PIXELS", 100)
    with pytest.raises(DataError, match=r"00.png has \d+ x \d+ pixels, more than the 100 allowed"):
        decode_image(path, 32, central_crop)


# the model and the task


def test_the_networks_for_large_images_have_the_published_sizes():
    with torch.device("meta"):
        models = resnet50(1000), resnet18(1000, large=True)
    assert [sum(p.numel() for p in model.parameters()) for model in models] == [25_557_032, 11_689_512]
    halvings = [
        conv.stride for conv in models[0].modules() if isinstance(conv, torch.nn.Conv2d) and conv.kernel_size != (1, 1)
    ]
    assert halvings.count((2, 2)) == 4 and halvings[:2] == [(2, 2), (1, 1)]  # and the pool makes five


def test_a_bottleneck_begins_as_its_way_around():
    block, x = initialize(lambda: Bottleneck(8, 8, 1), seed=1), torch.rand(2, 8, 4, 4)
    assert torch.equal(block(x), x)


def test_more_workers_than_images_are_refused(place):
    with pytest.raises(CompositionError, match="24 examples cannot be split over 25 workers"):
        make_task("image_folder", {}, place).prepare(25, IID)


def test_measuring_takes_images_of_every_class_and_the_middle_without_augmentation(place):
    task = make_task("image_folder", {"pixels": 32, "test_images": 6, "augment": False}, place)
    assert task._test_labels().tolist() == [0, 0, 1, 1, 2, 2] and task.describe()["test_examples"] == 6
    files = read_folders("imagenet", str(place)).train
    shown = task._train_images(torch.tensor([3, 20]), None)
    assert torch.equal(shown[1], decode_image(files.path(20), 32, central_crop))
    facts = make_task("image_folder", {}, place).describe()
    assert facts["test_examples"] == 12 and facts["classes"] == 3 and facts["model"] == "resnet50"


def test_images_of_folders_train_in_lockstep(place, monkeypatch):
    """By a tiny network: ResNet-50 takes a minute for the same."""
    monkeypatch.setenv("THINWIRE_DATA", str(place))
    monkeypatch.setitem(MODELS, "resnet18", tiny_data.tiny_resnet)
    experiment = Experiment(
        name="folders", task=TaskConfig("image_folder", {"model": "resnet18", "pixels": 64, "batch": 4, "test_images": 3}),
        methods=(Method("TopK", "ef(topk(density=0.01))"),), groups=(RunGroup("images", 2),), steps=2, log_every=1,
    )  # fmt: skip
    first, second = (run_here(experiment)["runs"][0] for _ in range(2))
    assert without_times(first) == without_times(second) and first["final"]["step"] == 2
    assert first["final"]["wire_bytes"] > 0 and np.isfinite(first["final"]["loss"])
