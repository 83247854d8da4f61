"""Files made to fool the one who loads a prior: each is refused in one line, soon, without running
anything of it and without filling the memory."""

import gzip
import io
import json
import math
import os
import pickle
import resource
import struct
import time
import zipfile

import pytest
import torch
from conftest import make_images
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from captum_pda import GaussianFieldPrior, GaussianPatchPrior
from captum_pda.priors import protocol

SECONDS = 10
MEGABYTES = 300
#: Unfitted priors by what their files hold.
KINDS = {
    "field": GaussianFieldPrior,
    "stationary": lambda: GaussianPatchPrior(5),
    "full": lambda: GaussianPatchPrior(5, covariance="full"),
}


class Trap:
    """Pickled, it runs code when loaded."""

    def __reduce__(self):
        return (os._exit, (13,))


def saved(kind, folder):
    """The class of a kind of prior, and the file of one that was fitted."""
    path = folder / "prior.safetensors"
    prior = KINDS[kind]().fit(make_images(2, 3, 9, 11))
    prior.save(path)
    return type(prior), path


@pytest.fixture(params=KINDS)
def stored(request, tmp_path):
    return saved(request.param, tmp_path)


def assert_refused(prior_type, path, says="."):
    """One line that names the file and the reason, soon and in little memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(ValueError, match=says) as caught:
        prior_type.load(path)
    assert time.process_time() - start < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024
    message = str(caught.value)
    assert message.startswith(f"{path} is not a prior that can be used: ")
    assert "\n" not in message
    assert len(message) < len(str(path)) + 400


# Files of another kind


def zip_bomb():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../prior/data.pkl", bytes(2**24))
    return packed.getvalue()


def torch_file(content):
    packed = io.BytesIO()
    torch.save(content, packed)
    return packed.getvalue()


def with_header(header, data=b""):
    """A safetensors file with any header at all."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def tensor_header(**changes):
    """The header of one tensor with some of its entries changed."""
    entry = {"dtype": "F64", "shape": [2, 3], "data_offsets": [0, 48]} | changes
    return with_header(
        {"range": entry, "__metadata__": {"format": protocol.FILE_FORMAT}}, bytes(48)
    )


CONTENTS = {
    "empty": b"",
    "text": b"kind: field\n" * 50,
    "a pickle that runs code": pickle.dumps(Trap()),
    "a torch file that runs code": torch_file({"range": Trap()}),
    "a nested pickle": b"\x80\x04" + b"(" * 10**6 + b".",
    "a zip bomb": zip_bomb(),
    "a gzip bomb": gzip.compress(bytes(2**24)),
    "a header of 2**64 - 1 bytes": b"\xff" * 64,
    "a header larger than the file": struct.pack("<Q", 10**7) + b"{}",
    "a header that is no JSON": with_header(b"{'range': nonsense"),
    "a header of nested lists": with_header(b"[" * 10**6),
    "a header that is a list": with_header([1, 2, 3]),
    "no metadata": with_header(
        {"range": {"dtype": "F64", "shape": [2, 3], "data_offsets": [0, 48]}}, bytes(48)
    ),
    "a huge shape": tensor_header(shape=[2**40, 2**20]),
    "a negative shape": tensor_header(shape=[-2, -3]),
    "offsets beyond the file": tensor_header(data_offsets=[0, 2**40]),
    "a data type that there is not": tensor_header(dtype="PICKLE"),
    "many thousand names": with_header(
        {
            f"../../{'x' * 50}{n}\n": {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]}
            for n in range(20_000)
        }
        | {"__metadata__": {"format": protocol.FILE_FORMAT, "version": "1", "settings": "{}"}}
    ),
}


@pytest.mark.parametrize("prior_type", [GaussianFieldPrior, GaussianPatchPrior])
@pytest.mark.parametrize("name", CONTENTS)
def test_files_of_another_kind(tmp_path, name, prior_type):
    path = tmp_path / "prior.safetensors"
    path.write_bytes(CONTENTS[name])
    assert_refused(prior_type, path)


def test_truncated_files(stored):
    prior_type, path = stored
    whole = path.read_bytes()
    for kept in (1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:kept])
        assert_refused(prior_type, path)
    path.write_bytes(whole + b"more")
    assert_refused(prior_type, path)


def test_any_byte_may_be_changed(stored):
    """Refused, or read as other numbers: never anything else."""
    prior_type, path = stored
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 300)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            prior_type.load(path)
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017 - it need not raise


# Files of the right kind with other content


def rewrite(path, change):
    """Pass a file's tensors, header and settings through ``change``."""
    with safe_open(path, "pt") as file:
        header = file.metadata()
    tensors, settings = load_file(path), json.loads(header["settings"])
    header["settings"] = ""
    change(tensors, header, settings)
    header["settings"] = header["settings"] or json.dumps(settings)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, header)


def in_settings(**changes):
    return lambda tensors, header, settings: settings.update(changes)


def in_header(**changes):
    return lambda tensors, header, settings: header.update(changes)


def in_tensors(**changes):
    return lambda tensors, header, settings: tensors.update(changes)


HEADERS = {
    "another format": (in_header(format="other"), "header"),
    "another version": (in_header(version="99"), "version"),
    "a version of a million characters": (in_header(version="9" * 10**6), "header"),
    "settings that are no JSON": (in_header(settings="{"), "."),
    "settings that are a list": (in_header(settings="[]"), "table"),
    "settings that are nested": (in_header(settings="[" * 50_000), "."),
    "another kind of prior": (in_settings(kind="MarginalPrior"), "hold"),
    "no kind of prior": (lambda tensors, header, settings: settings.pop("kind"), "hold"),
    "an extra tensor": (in_tensors(extra=torch.zeros(1)), "belong"),
    "a path for a name": (in_tensors(**{"../../etc/passwd\n": torch.zeros(1)}), "belong"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_files_with_another_header(stored, name):
    prior_type, path = stored
    change, says = HEADERS[name]
    rewrite(path, change)
    assert_refused(prior_type, path, says)


SETTINGS = {
    "unknown settings": (in_settings(__class__="os.system"), "."),
    "a missing setting": (lambda tensors, header, settings: settings.pop("patch_size"), "."),
    "a negative patch": (in_settings(patch_size=[-5, -5]), "patch_size"),
    "a patch of many dimensions": (in_settings(patch_size=[2] * 1000), "patch_size"),
    "a huge patch": (in_settings(patch_size=[10**9, 10**9]), "shape"),
    "a patch of text": (in_settings(patch_size="55"), "patch_size"),
    "an unknown covariance": (in_settings(covariance="../../evil"), "choose one of"),
    "regularization that is no number": (in_settings(regularization=float("nan")), "regular"),
    "regularization of text": (in_settings(regularization="import os"), "."),
    "clipping of text": (in_settings(clip_samples="no"), "clip_samples"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_patch_priors_with_other_settings(tmp_path, name):
    prior_type, path = saved("stationary", tmp_path)
    change, says = SETTINGS[name]
    rewrite(path, change)
    assert_refused(prior_type, path, says)


F64 = torch.float64
PATCHES = {
    "no range": (lambda t: t.pop("range"), "range|no channels"),
    "no channels": (lambda t: t.update(range=torch.zeros(2, 0)), "channels"),
    "a range without a shape": (lambda t: t.update(range=torch.zeros(())), "."),
    "single precision": (lambda t: t.update(range=torch.zeros(2, 3)), "F64"),
    "a range upside down": (lambda t: t["range"][0].add_(1e6), "range"),
    "a range that is no number": (lambda t: t["range"].fill_(math.nan), "NaN"),
}
TENSORS = {
    "stationary": PATCHES
    | {
        "NaN": (lambda t: t["products"].fill_(math.nan), "NaN"),
        "infinity": (lambda t: t["sums"].fill_(math.inf), "infinite"),
        "asymmetric products": (lambda t: t["products"][0, 1].add_(1e6), "not that of any"),
        "no pixels": (lambda t: t["counts"].zero_(), "not that of any"),
        "negative counts": (lambda t: t["counts"].neg_(), "not that of any"),
        "negative variances": (lambda t: t["products"].neg_(), "not that of any"),
        "an indefinite covariance": (
            lambda t: t["products"][..., 3:6].copy_(t["products"][..., 3:6].flip(-1).neg() * 9),
            "not that of any",
        ),
    },
    "full": PATCHES
    | {
        "NaN": (lambda t: t["scatter"].fill_(math.nan), "NaN"),
        "infinity": (lambda t: t["mean"].fill_(math.inf), "infinite"),
        "asymmetric": (lambda t: t["scatter"][0, 0, 1].add_(1e6), "not that of any"),
        "no patches": (lambda t: t["count"].zero_(), "not that of any"),
        "negative count": (lambda t: t["count"].neg_(), "not that of any"),
        "negative variances": (lambda t: t["scatter"].neg_(), "not that of any"),
        "an indefinite covariance": (lambda t: t["scatter"][0].fill_diagonal_(0.0), "not that of"),
    },
    "field": {
        "no mean": (lambda t: t.pop("mean"), "mean"),
        "no channels": (lambda t: t.update(mean=torch.zeros(0, dtype=F64)), "no channels"),
        "a mean without a shape": (lambda t: t.update(mean=torch.zeros((), dtype=F64)), "channels"),
        "other colours": (lambda t: t.update(colours=t["colours"][:2]), "colours has shape"),
        "single precision": (lambda t: t.update(mean=t["mean"].float()), "F32 where F64"),
        "NaN": (lambda t: t["mean"].fill_(math.nan), "mean holds NaN"),
        "an infinite length": (lambda t: t["lengths"].fill_(math.inf), "lengths holds NaN or inf"),
        "a negative length": (lambda t: t["lengths"].fill_(-1), "correlation length is -1, beyond"),
        "a length of next to nothing": (lambda t: t["lengths"].fill_(1e-200), "length is 1e-200"),
        "a huge smoothness": (lambda t: t["lengths"][1:].fill_(1e200), "smoothness is 1e.200"),
        "asymmetric colours": (lambda t: t["colours"][0].add_(1), "not a covariance"),
        "negative colours": (lambda t: t["colours"].neg_(), "not a covariance"),
    },
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, cases in TENSORS.items() for name in cases]
)
def test_numbers_that_no_images_have(tmp_path, kind, name):
    prior_type, path = saved(kind, tmp_path)
    change, says = TENSORS[kind][name]
    rewrite(path, lambda tensors, header, settings: change(tensors))
    assert_refused(prior_type, path, says)


def test_a_terabyte_of_holes_is_not_read(tmp_path):
    """A file system keeps zeros for nothing, so a tiny file can hold any size."""
    path = tmp_path / "prior.safetensors"
    lags = 2 * 2**16 - 1
    sizes = {"origin": [1], "products": [1, 1, lags, lags], "sums": [1, lags, lags]}
    sizes |= {"counts": [lags, lags], "range": [2, 1]}
    settings = {"patch_size": [2**16] * 2, "covariance": "stationary", "channels": "joint"}
    header = {
        "__metadata__": {
            "format": protocol.FILE_FORMAT,
            "version": str(protocol.FILE_VERSION),
            "settings": json.dumps(settings | {"regularization": 1e-5, "clip_samples": False}),
        }
    }
    end = 0
    for name, shape in sizes.items():
        begin, end = end, end + 8 * torch.Size(shape).numel()
        header[name] = {"dtype": "F64", "shape": shape, "data_offsets": [begin, end]}
    content = with_header(header)
    path.write_bytes(content)
    try:
        os.truncate(path, len(content) + end)
    except OSError:
        pytest.skip("this file system has no files with holes")
    assert_refused(GaussianPatchPrior, path, "bytes")


@pytest.mark.parametrize("kind", KINDS)
def test_honest_files_are_read(kind, tmp_path):
    path, images = tmp_path / "prior.safetensors", make_images(2, 3, 9, 11)
    given = [images * 1e6, images * 1e-6, images.round(), [images * 0 + 3, images]]
    for data in [*given, images * 0 + 3] if kind != "field" else given:  # it has no spectrum then
        prior = KINDS[kind]().fit(data)
        prior.save(path, overwrite=True)
        assert type(prior).load(path).settings() == prior.settings()


# Saving


def test_saving_does_not_overwrite_by_surprise(stored):
    prior_type, path = stored
    prior, before = prior_type.load(path), path.read_bytes()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        prior.save(path)
    assert path.read_bytes() == before
    prior.fit(make_images(2, 3, 9, 11, seed=7)).save(path, overwrite=True)
    assert prior_type.load(path).settings() == prior.settings()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with pytest.raises(FileNotFoundError, match="no prior"):
        prior_type.load(path.parent / "another")
    with pytest.raises(FileNotFoundError, match="no folder"):
        prior.save(path.parent / "missing" / "prior.safetensors")


def test_saving_does_not_overwrite_what_comes_in_between(tmp_path, monkeypatch):
    path = tmp_path / "prior.safetensors"
    prior = GaussianPatchPrior(5).fit(make_images(2, 3, 9, 11))
    encode = protocol.to_bytes

    def slow(*arguments, **keywords):
        path.write_text("someone else was faster")
        return encode(*arguments, **keywords)

    monkeypatch.setattr(protocol, "to_bytes", slow)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        prior.save(path)
    assert path.read_text() == "someone else was faster"
    assert list(tmp_path.iterdir()) == [path]


def test_saving_does_not_follow_a_dangling_link(tmp_path):
    path = tmp_path / "prior.safetensors"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        GaussianPatchPrior(5).fit(make_images(2, 3, 9, 11)).save(path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=str)
@pytest.mark.parametrize("step", ["fsync", "link", "replace"])
def test_a_save_that_fails_leaves_the_old_file_and_no_half_one(tmp_path, monkeypatch, step, error):
    path = tmp_path / "prior.safetensors"
    prior = GaussianPatchPrior(5).fit(make_images(2, 3, 9, 11))
    overwrite = step == "replace"
    if overwrite:
        prior.save(path)
    before = [file.read_bytes() for file in tmp_path.iterdir()]

    def fail(*arguments):
        raise error

    monkeypatch.setattr(protocol.os, step, fail)
    if step == "link" and isinstance(error, OSError):  # a file system without links
        prior.save(path)
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
        return
    with pytest.raises(type(error)):
        prior.save(path, overwrite=overwrite)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == before


def test_saved_files_are_as_readable_as_others_and_may_have_long_names(tmp_path):
    (tmp_path / "other").touch()
    GaussianPatchPrior(5).fit(make_images(2, 3, 9, 11)).save(
        tmp_path / ("n" * 240 + ".safetensors")
    )
    assert len(list(tmp_path.iterdir())) == 2
    assert len({file.stat().st_mode for file in tmp_path.iterdir()}) == 1
